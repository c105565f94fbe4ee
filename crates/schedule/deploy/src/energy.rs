//! What the GPUs of a plan draw for a token.

use std::fmt;

use bedplate_units::Watts;

use crate::{HeldPlan, Plan, Supply};

/// What the GPUs in use take for a token if all of them draw the most they can.
#[derive(Debug, Clone, PartialEq)]
pub struct Energy {
    pub joules_per_token: f64,
    /// GPUs of each kind.
    pub drawn: Vec<(u32, Watts)>,
}

impl Energy {
    /// `None` where the watts of a chip are not known.
    pub fn of(supply: &Supply, held: &HeldPlan) -> Option<Self> {
        let drawn = match (&held.plan, &supply.prompts) {
            (Plan::Disaggregated { prefill, decode }, Some(prompts)) => {
                vec![(prefill.gpus(), prompts.watts_per_gpu?), (decode.gpus(), supply.watts_per_gpu?)]
            }
            (plan, _) => vec![(plan.gpus(), supply.watts_per_gpu?)],
        };
        let tokens = held.shown.outcome.output_tokens_per_second();
        let watts: f64 = drawn.iter().map(|(gpus, watts)| watts.get() * f64::from(*gpus)).sum();
        (tokens > 0.0).then(|| Self { joules_per_token: watts / tokens, drawn })
    }
}

impl fmt::Display for Energy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |(gpus, watts): &(u32, Watts)| match gpus {
            1 => format!("1 GPU at {watts}"),
            gpus => format!("{gpus} GPUs at {watts}"),
        };
        let drawn: Vec<String> = self.drawn.iter().map(each).collect();
        write!(f, "at most {:.3} J for a token generated: {}", self.joules_per_token, drawn.join(", "))
    }
}

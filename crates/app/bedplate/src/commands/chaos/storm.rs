//! `bedplate chaos storm`: breaks one thing after the other, at random, and mends nodes as an operator would.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_control::wire::Chaos;
use bedplate_drivers::{Driver, Local, NodeId, NodeSummary, StateDirectory};
use bedplate_local::{Launcher, Shape, find_agent, hold};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_units::Seconds;
use serde_json::json;

use crate::connection::Connection;
use crate::launcher::launcher;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The same seed makes the same choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long it lasts
    #[arg(long = "for", value_name = "TIME", default_value = "60s")]
    lasts: Seconds,
    /// Mean time between two faults
    #[arg(long, value_name = "TIME", default_value = "3s")]
    every: Seconds,
    /// Kill the daemon too
    #[arg(long)]
    control: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What a storm does next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Blow {
    KillNode(NodeId),
    Cut(NodeId, u64),
    Delay(NodeId, u64, u64),
    KillRank(NodeId),
    KillControl,
    /// The one thing that heals: an agent that died is started again.
    Mend(NodeId),
}

/// Numbers that look random and are the same for the same seed (xorshift).
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit.max(1)
    }
}

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.local("chaos")?;
    let mut draw = Draw::new(arguments.seed);
    let began = Instant::now();
    let (lasts, every) = (super::milliseconds(arguments.lasts), super::milliseconds(arguments.every).max(1));
    let mut done = Vec::new();
    console.say(&format!("storm of seed {} for {}", arguments.seed, arguments.lasts));
    while (began.elapsed().as_millis() as u64) < lasts {
        let blow = next(&mut draw, &driver.nodes()?, arguments.control);
        let text = strike(&blow, &driver, arguments, context, console)?;
        let at = began.elapsed().as_secs_f64();
        console.say(&format!("{at:>6.1} s  {text}"));
        done.push(json!({ "at_s": at, "did": text }));
        thread::sleep(Duration::from_millis(every / 2 + draw.below(every)));
    }
    let state = arguments.connection.state()?;
    let launcher = launcher(context, console)?;
    for node in driver.nodes()?.iter().filter(|node| !node.is_linked) {
        mend(&state, &driver, &launcher, &node.name)?;
    }
    console.say("calm; all agents have been started again");
    if console.is_json() { console.json(&json!({ "seed": arguments.seed, "did": done })) } else { Ok(()) }
}

fn next(draw: &mut Draw, nodes: &[NodeSummary], kills_control: bool) -> Blow {
    let (up, down): (Vec<&NodeSummary>, Vec<&NodeSummary>) = nodes.iter().partition(|node| node.is_linked);
    // At least half of the cluster stands at any time: a storm, not the end.
    let must_mend = down.len() * 2 >= nodes.len();
    if !down.is_empty() && (must_mend || draw.below(3) == 0) {
        return Blow::Mend(down[draw.below(down.len() as u64) as usize].name.clone());
    }
    let node = up[draw.below(up.len() as u64) as usize].name.clone();
    match draw.below(if kills_control { 5 } else { 4 }) {
        0 => Blow::KillNode(node),
        1 => Blow::Cut(node, 500 + draw.below(8000)),
        2 => Blow::Delay(node, 50 + draw.below(500), 1000 + draw.below(5000)),
        3 => Blow::KillRank(node),
        _ => Blow::KillControl,
    }
}

fn strike(
    blow: &Blow,
    driver: &Local,
    arguments: &Arguments,
    context: &Context,
    console: &Console,
) -> Result<String, CliError> {
    let (node, chaos, text) = match blow {
        Blow::KillNode(node) => (node, Chaos::Die, format!("{node} dies")),
        Blow::Cut(node, for_ms) => {
            (node, Chaos::Cut { for_ms: *for_ms }, format!("{node} is cut off for {for_ms} ms"))
        }
        Blow::Delay(node, by_ms, for_ms) => {
            let chaos = Chaos::Delay { by_ms: *by_ms, for_ms: *for_ms };
            (node, chaos, format!("{node} is slow by {by_ms} ms for {for_ms} ms"))
        }
        Blow::KillRank(node) => {
            let chaos = Chaos::KillRank { run: None, rank: None };
            (node, chaos, format!("a rank on {node} dies, if it has one"))
        }
        Blow::KillControl => return super::kill_control(&arguments.connection, true, context, console),
        Blow::Mend(node) => {
            let state = arguments.connection.state()?;
            mend(&state, driver, &launcher(context, console)?, node)?;
            return Ok(format!("{node} is started again"));
        }
    };
    match driver.chaos(node, &chaos) {
        Ok(()) => Ok(text),
        // The node may have gone between the look and the blow.
        Err(error) if error.is_refusal() => Ok(format!("{node} has gone already")),
        Err(error) => Err(error.into()),
    }
}

/// Starts an agent, unless the supervisor was quicker.
fn mend(state: &StateDirectory, driver: &Local, launcher: &Launcher, node: &NodeId) -> Result<(), CliError> {
    let _held = hold(state)?;
    match find_agent(state, node) {
        Some(_) => Ok(()),
        None => Ok(launcher.start_agent(state, driver, &Shape::load(state)?, node)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_stays_below_its_limit() {
        let draws = |seed| {
            let mut draw = Draw::new(seed);
            (0..100).map(|_| draw.below(7)).collect::<Vec<_>>()
        };
        assert_eq!(draws(3), draws(3));
        assert_ne!(draws(3), draws(4));
        assert!(draws(5).iter().all(|drawn| *drawn < 7));
        assert!((0..7).all(|value| draws(5).contains(&value)));
    }
}

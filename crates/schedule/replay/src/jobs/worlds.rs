//! Generated loads that are unkind to one rule or another: what a scheduler's defaults are chosen on, and judged by.
//!
//! Each is Lublin's model with something added or changed, on a cluster of a given number of GPUs with eight a node. The same seed gives
//! the same jobs for every policy.

use bedplate_gangs::{Closeness, Span, Time};
use bedplate_random::Random;
use bedplate_topology::Level;

use super::{Generator, LoadMixture, Lublin, Size, Trace, TraceJob};

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum World {
    Lublin,
    /// Language models: mostly small jobs, most GPU time in few large ones, with QOS.
    Llm,
    /// Jobs of one GPU for so many per cent of the cluster's time, beside Lublin's, evenly over time and from many users.
    Trickle {
        percent: u32,
        run: Span,
    },
    /// Every other day one user submits a thousand jobs of one GPU at once, each of twenty minutes.
    Arrays,
    /// What comes in the last 18 hours of a week is submitted at their end.
    Maintenance,
    /// Every second job asks for thirty times what it needs, the others for what they need.
    WrongLimits,
    /// Every 36 hours a gang asks for the whole cluster for two hours.
    Whole,
    /// Gangs of two to four nodes must lie under one leaf.
    Leaves,
}

/// Separates these draws from others of the same seed.
const STREAM: u64 = 0x776f_726c_6473_2121;
const USERS: usize = 12;

impl World {
    /// All but trickles.
    pub const ALL: [(&'static str, World); 8] = [
        ("lublin", World::Lublin),
        ("llm", World::Llm),
        ("trickle", World::Trickle { percent: 5, run: Span::hours(4) }),
        ("arrays", World::Arrays),
        ("maintenance", World::Maintenance),
        ("wrong-limits", World::WrongLimits),
        ("whole", World::Whole),
        ("leaves", World::Leaves),
    ];

    /// About `jobs` jobs for a cluster of so many GPUs; `load` is the work of those that every world has over what the cluster can do, and
    /// what is added comes on top.
    pub fn generate(self, jobs: usize, gpus: u32, load: f64, seed: u64) -> Trace {
        if self == World::Llm {
            let mixture = LoadMixture::SEREN;
            return Generator { mixture, jobs, days: None, load, gpus, gpus_per_node: 8, seed }.generate();
        }
        let mut trace = Lublin { jobs, processors: gpus, load, seed }.generate();
        let mut random = Random::stream(seed ^ STREAM, 0);
        for job in &mut trace.jobs {
            job.user = 1 + random.below(USERS) as u32;
        }
        for user in 0..=USERS {
            trace.users.place(&format!("u{user}"));
        }
        let window = trace.jobs.last().map_or(Span::ZERO, |job| job.submit.since(Time::ZERO));
        match self {
            World::Lublin | World::Llm => {}
            World::Trickle { percent, run } => {
                let work = f64::from(percent) / 100.0 * f64::from(gpus) * window.0 as f64;
                let count = (work / run.0 as f64) as u64;
                let at = |random: &mut Random| Time(random.below(window.0.max(1) as usize) as u64);
                let added = (0..count).map(|_| TraceJob::new(at(&mut random), run, Size::Gpus(1)));
                trace.jobs.extend(added);
            }
            World::Arrays => {
                let times = (1..).map(|day| Span::days(2 * day)).take_while(|at| *at < window);
                let one = |at: Span| TraceJob::new(Time::ZERO + at, Span::minutes(20), Size::Gpus(1));
                trace.jobs.extend(times.flat_map(|at| std::iter::repeat_n(one(at), 1000)));
            }
            World::Maintenance => {
                trace.jobs.iter_mut().for_each(|job| job.submit = after_maintenance(job.submit))
            }
            World::WrongLimits => {
                for job in &mut trace.jobs {
                    let factor = if random.chance(50) { 30.0 } else { 1.0 };
                    let asked = job.duration.times(factor).round_up(Span::minutes(15)).min(Span::days(7));
                    job.time_limit = Some(asked.max(job.duration.round_up(Span::minutes(15))));
                }
            }
            World::Whole => {
                let times = (1..).map(|time| Span::hours(36 * time)).take_while(|at| *at < window);
                let one = |at: Span| TraceJob::new(Time::ZERO + at, Span::hours(2), Size::Gpus(gpus));
                trace.jobs.extend(times.map(one));
            }
            World::Leaves => {
                for job in &mut trace.jobs {
                    if (9.0..=32.0).contains(&job.gpus()) {
                        job.closeness = Closeness::Required(Level::LEAF);
                    }
                }
            }
        }
        trace.finish()
    }
}

fn after_maintenance(submit: Time) -> Time {
    let (week, closed) = (Span::days(7).0, Span::hours(18).0);
    let into = submit.0 % week;
    if into + closed >= week { Time(submit.0 - into + week) } else { submit }
}

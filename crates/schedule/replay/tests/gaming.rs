//! What a user gains by tricks, against what the same tricks bring under EASY, and what that costs others.

use bedplate_catalog::Catalog;
use bedplate_gangs::Span;
use bedplate_replay::jobs::{Replay, ReplayPolicy, Size, Trace, TraceJob, World, simulate};
use bedplate_topology::Cluster;

/// One of the users of the generated load.
const PLAYER: u32 = 3;
const SEEDS: std::ops::Range<u64> = 200..212;
const JOBS: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Trick {
    /// Every job of several GPUs becomes as many jobs of one.
    Split,
    /// Limits are five times as long.
    Overstate,
    /// Every job comes under a new account's name.
    ManyAccounts,
}

/// Mean turnaround in hours of what the player wanted done, and of the others' jobs.
struct Turnaround {
    player: f64,
    others: f64,
}

/// The jobs under a trick, and for each the job of the plain load that it is a part of.
fn played(plain: &Trace, trick: Option<Trick>) -> (Trace, Vec<usize>) {
    let mut trace = Trace { jobs: Vec::new(), ..plain.clone() };
    let mut parts = Vec::new();
    for (place, job) in plain.jobs.iter().enumerate() {
        let is_players = job.user == PLAYER;
        let copies = match trick.filter(|_| is_players) {
            Some(Trick::Split) => job.gpus() as usize,
            _ => 1,
        };
        for _ in 0..copies {
            let mut played = job.clone();
            let limit = job.time_limit.unwrap_or(job.duration);
            match trick.filter(|_| is_players) {
                Some(Trick::Split) => played.size = Size::Gpus(1),
                Some(Trick::Overstate) => played.time_limit = Some(limit.times(5.0)),
                Some(Trick::ManyAccounts) => {
                    played.user = trace.users.place(&format!("alias{}", trace.jobs.len()));
                }
                None => {}
            }
            trace.jobs.push(played);
            parts.push(place);
        }
    }
    (trace, parts)
}

fn turnaround(policy: &str, seed: u64, trick: Option<Trick>) -> Turnaround {
    let cluster = Cluster::from_spec("p5.48xlarge:8", &Catalog::builtin()).expect("the cluster is valid");
    let mut plain = World::Lublin.generate(JOBS, cluster.gpu_count(), 0.9, seed);
    // Everybody asks for twice what is needed, so that limits can be made longer.
    let limit = |job: &TraceJob| job.duration.times(2.0).round_up(Span::minutes(15));
    plain.jobs.iter_mut().for_each(|job| job.time_limit = Some(limit(job)));
    let (trace, parts) = played(&plain, trick);
    let replay = Replay { seed, ..Replay::new(ReplayPolicy::find(policy).expect("a policy")) };
    let outcome = simulate(&trace, &cluster, &replay, &mut |_| {});
    let mut hours = vec![0.0f64; plain.jobs.len()];
    for (record, place) in outcome.records.iter().zip(&parts) {
        let taken = record.ended.expect("all end").since(plain.jobs[*place].submit);
        hours[*place] = hours[*place].max(taken.as_seconds() / 3600.0);
    }
    let mean = |of_player: bool| {
        let those = plain.jobs.iter().zip(&hours).filter(|(job, _)| (job.user == PLAYER) == of_player);
        let hours: Vec<f64> = those.map(|(_, hours)| *hours).collect();
        hours.iter().sum::<f64>() / hours.len() as f64
    };
    Turnaround { player: mean(true), others: mean(false) }
}

/// How much shorter the player's turnaround gets by a trick, and how much longer that of others, as factors over all seeds.
fn effect(policy: &str, trick: Trick) -> (f64, f64) {
    let sums = |trick: Option<Trick>| {
        let all: Vec<Turnaround> = SEEDS.map(|seed| turnaround(policy, seed, trick)).collect();
        (all.iter().map(|each| each.player).sum::<f64>(), all.iter().map(|each| each.others).sum::<f64>())
    };
    let (plain, played) = (sums(None), sums(Some(trick)));
    (plain.0 / played.0, played.1 / plain.1)
}

fn check(trick: Trick) {
    let (easy, ours) = (effect("easy", trick), effect("ours", trick));
    let told = format!(
        "{trick:?}: the player gains {:.3} times under EASY and {:.3} under ours; others take {:.3} and {:.3} times as long",
        easy.0, ours.0, easy.1, ours.1
    );
    assert!(ours.0 <= easy.0 * 1.05 && ours.1 <= easy.1 * 1.02, "{told}");
}

#[test]
fn who_splits_his_jobs_gains_no_more_than_under_easy() {
    check(Trick::Split);
}

#[test]
fn who_overstates_his_limits_gains_no_more_than_under_easy() {
    check(Trick::Overstate);
}

#[test]
fn who_has_many_accounts_gains_no_more_than_under_easy() {
    check(Trick::ManyAccounts);
}

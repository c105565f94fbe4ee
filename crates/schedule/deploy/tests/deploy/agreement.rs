//! The closed loop of the performance model and a replay of the same load agree.
//!
//! With room in the cache they agree to a hundredth of a percent: the same steps in the same order, one timed in
//! floating point, the other in whole picoseconds. Where the cache fills up they differ by a few percent, because
//! the replay knows more: blocks are whole, so up to 15 tokens of a sequence are empty, a watermark is kept free,
//! and growth beyond the reservation causes preemption, which the closed loop leaves out.

use bedplate_deploy::TimedReplica;
use bedplate_perf::serving::{
    ClosedLoop, Deployment, Engine, Latency, LengthSpread, Parallel, Prefixes, Replica, ServedModel,
    ServingConstants, WeightFormat, closed_loop,
};
use bedplate_replay::requests::{
    Arrivals, Fleet, GeneratedLoad, Lengths as Tokens, Pool, SharedPrefix, StepTime, Traffic, seconds,
    simulate,
};

use crate::support::supply;

fn replica(model: &str, tensor: u32, engine: Engine) -> Replica {
    let model = ServedModel::named(model).expect("the model is built in");
    let hardware = supply("p5en.48xlarge:1").hardware;
    let mut deployment =
        Deployment::new(model, WeightFormat::Fp8, hardware, Parallel::tensor(tensor), engine);
    // The polling delay of an engine is in steps there and part of the request overhead here, which a replay adds to the whole
    // request. There, what a first token waits for outside steps delays the end of short answers only.
    deployment.settings.visible_after = Some(0.0);
    deployment.adjustment.first_token = -1.0;
    let constants = ServingConstants { tokenise: 0.0, ..ServingConstants::builtin() };
    Replica::new(deployment, &constants).expect("the degrees are sound")
}

fn looped(replica: &Replica, users: u32, input: u32, output: u32) -> Latency {
    looped_with_prefix(replica, users, (input, output), 0)
}

fn looped_with_prefix(replica: &Replica, users: u32, (input, output): (u32, u32), percent: u32) -> Latency {
    let load = ClosedLoop {
        concurrency: users,
        requests: users * 10,
        input: LengthSpread::fixed(input),
        output: LengthSpread::fixed(output),
        prefixes: Prefixes { cached_share: f64::from(percent) / 100.0, kept: 0 },
    };
    closed_loop(replica, &load).expect("the requests fit")
}

fn replayed(replica: &Replica, users: u32, input: u32, output: u32) -> Latency {
    replayed_with_prefix(replica, users, (input, output), 0)
}

fn replayed_with_prefix(replica: &Replica, users: u32, (input, output): (u32, u32), percent: u32) -> Latency {
    let timed = TimedReplica::new(replica.clone(), u64::from(input + output / 2));
    let pool = Pool { scheduler: timed.scheduler(1024, input), ..Pool::new(1, &timed) };
    let fleet = Fleet { way: timed.way(input, 0.0), ..Fleet::aggregated(pool) };
    assert_eq!(fleet.way, 0, "both count steps alone");
    let load = GeneratedLoad {
        requests: users * 10,
        arrivals: Arrivals::Closed { users },
        prompt: Tokens::Fixed(input),
        output: Tokens::Fixed(output),
        shared: (percent > 0).then_some(SharedPrefix { percent, groups: 1 }),
        ..GeneratedLoad::default()
    };
    let outcome = simulate(Traffic::Generated(load), &fleet).expect("the settings are sound");
    Latency {
        first_token: seconds(outcome.ttft.mean),
        inter_token: seconds(outcome.itl.mean),
        end_to_end: seconds(outcome.end_to_end.mean),
        output_tokens_per_second: outcome.output_tokens_per_second(),
    }
}

#[test]
fn a_replay_of_a_closed_loop_agrees_with_the_performance_models_own() {
    let cases = [
        ("llama-3.1-8b", 1, Engine::Vllm, 8, 1024, 128),
        ("llama-3.1-8b", 1, Engine::Sglang, 32, 2000, 200),
        ("llama-3.3-70b", 4, Engine::Vllm, 16, 4000, 500),
        ("llama-3.3-70b", 8, Engine::Bedplate, 64, 1000, 300),
    ];
    for (model, tensor, engine, users, input, output) in cases {
        let replica = replica(model, tensor, engine);
        let (ours, theirs) =
            (replayed(&replica, users, input, output), looped(&replica, users, input, output));
        let pairs = [
            ("ttft", ours.first_token, theirs.first_token),
            ("itl", ours.inter_token, theirs.inter_token),
            ("end to end", ours.end_to_end, theirs.end_to_end),
            ("throughput", ours.output_tokens_per_second, theirs.output_tokens_per_second),
        ];
        for (what, ours, theirs) in pairs {
            let off = ours / theirs - 1.0;
            assert!(
                off.abs() < 1e-4,
                "{model} tp{tensor} {users} users: {what} is off by {:.3}%",
                off * 100.0
            );
        }
    }
}

#[test]
fn under_pressure_on_the_cache_they_stay_near() {
    let replica = replica("llama-3.3-70b", 2, Engine::Vllm);
    let room = replica.memory().room.tokens();
    let (users, input, output) = (120, 8000, 600);
    assert!(room < u64::from(users * (input + output)), "{room} tokens hold all: there is no pressure");
    let (ours, theirs) = (replayed(&replica, users, input, output), looped(&replica, users, input, output));
    let off = |ours: f64, theirs: f64| ours / theirs - 1.0;
    let itl = off(ours.inter_token, theirs.inter_token);
    let rate = off(ours.output_tokens_per_second, theirs.output_tokens_per_second);
    let ttft = off(ours.first_token, theirs.first_token);
    // Measured when this was written: -2.5 %, -0.7 % and +5.9 %.
    assert!(itl.abs() < 0.05 && rate.abs() < 0.03, "itl {itl:.3}, throughput {rate:.3}");
    assert!(ttft.abs() < 0.12, "ttft {ttft:.3}");
}

#[test]
fn a_timed_replica_takes_as_long_as_the_performance_model_says() {
    let replica = replica("llama-3.3-70b", 4, Engine::Vllm);
    let timed = TimedReplica::new(replica.clone(), 4250);
    for decodes in [1, 7, 64, 300] {
        let line = timed.decode(decodes);
        for context in [100, 4250, 9000] {
            let context = context * u64::from(decodes);
            let theirs = replica.timer().decode_seconds(decodes, context, 0, 1);
            let ours = seconds(line.base + line.slope * context);
            assert!(
                (ours / theirs - 1.0).abs() < 1e-4,
                "{decodes} decodes, {context} tokens: {ours} {theirs}"
            );
        }
    }
    let shape = bedplate_breakdown::StepShape::prefill(0, 4000);
    assert!((seconds(timed.prefill(&shape)) / replica.timer().seconds(&shape) - 1.0).abs() < 1e-9);
}

#[test]
fn a_single_prompt_passes_pipeline_stages_one_after_the_other() {
    let model = ServedModel::named("llama-3.3-70b").expect("the model is built in");
    let hardware = supply("p5en.48xlarge:1").hardware;
    let layout = |pipeline| {
        let parallel = Parallel { pipeline, ..Parallel::tensor(1) };
        let deployment = Deployment::new(model.clone(), WeightFormat::Fp8, hardware, parallel, Engine::Vllm);
        let replica = Replica::new(deployment, &ServingConstants::builtin()).expect("the degrees are sound");
        TimedReplica::new(replica, 4250)
    };
    let prompt = bedplate_breakdown::StepShape::prefill(0, 4000);
    let (one, eight) = (layout(1).prefill(&prompt), layout(8).prefill(&prompt));
    assert!(eight as f64 > 0.9 * one as f64, "{eight} against {one}");
}

/// The replay computes the prefix once; the closed loop takes it for cached from the beginning.
#[test]
fn a_shared_prefix_shortens_prompts_alike_in_both() {
    let replica = replica("llama-3.3-70b", 4, Engine::Vllm);
    for percent in [25, 50, 80] {
        let ours = replayed_with_prefix(&replica, 16, (4000, 300), percent);
        let theirs = looped_with_prefix(&replica, 16, (4000, 300), percent);
        let without = looped(&replica, 16, 4000, 300);
        for (what, ours, theirs) in [
            ("itl", ours.inter_token, theirs.inter_token),
            ("throughput", ours.output_tokens_per_second, theirs.output_tokens_per_second),
        ] {
            assert!((ours / theirs - 1.0).abs() < 0.03, "{what} at {percent} %: {ours} {theirs}");
        }
        assert!(theirs.first_token < without.first_token && theirs.inter_token < without.inter_token);
    }
}

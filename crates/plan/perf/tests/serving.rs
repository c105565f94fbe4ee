//! Laws of the serving side: the fast form agrees with the breakdown, decode stretches sum exactly, more work
//! never takes less time, and no deployment makes it panic.

use bedplate_breakdown::Part;
use bedplate_catalog::Catalog;
use bedplate_perf::serving::{
    Adjustment, ClosedLoop, Deployment, Engine, HostWork, KvLink, KvRoom, LengthSpread, LoadedAdapters,
    Parallel, Pools, Prefixes, Replica, ServedModel, ServingConstants, Site, Speculation, StepShape,
    WeightFormat, closed_loop, disaggregated,
};
use bedplate_perf::{Hardware, Origin};
use proptest::prelude::*;

const MODELS: [&str; 9] = [
    "llama-3.1-8b",
    "llama-3.3-70b",
    "mistral-7b",
    "gemma-2-9b",
    "gpt-oss-120b",
    "deepseek-v3",
    "glm-5",
    "qwen3.5-397b-a17b",
    "minimax-m2.5",
];
const CHIPS: [&str; 6] = ["a100", "h100", "h200", "b200", "l4", "trainium2"];

fn hardware(name: &str) -> Hardware {
    let catalog = Catalog::builtin();
    let chip =
        Hardware::from_accelerator(catalog.accelerator(name).expect("known"), &catalog).expect("complete");
    Hardware { gpus: 8, domain: 8, ..chip }
}

fn deployment(model: &str, chip: &str, parallel: Parallel) -> Deployment {
    let model = ServedModel::named(model).expect("known");
    Deployment::new(model, WeightFormat::Fp8, hardware(chip), parallel, Engine::Vllm)
}

/// So many users, their requests in all, and the longest prompts and answers.
fn users(concurrency: u32, requests: u32, input: u32, output: u32) -> ClosedLoop {
    let lengths = |longest: u32| LengthSpread { longest, shortest_share: 0.8 };
    ClosedLoop {
        concurrency,
        requests,
        input: lengths(input),
        output: lengths(output),
        prefixes: Prefixes::default(),
    }
}

fn replica(model: &str, chip: &str, parallel: Parallel) -> Replica {
    Replica::new(deployment(model, chip, parallel), &ServingConstants::builtin())
        .expect("a layout with meaning")
}

fn any_replica() -> impl Strategy<Value = Replica> {
    let parallel = (0u32..4, 0u32..2, 0u32..3, 0u32..4).prop_map(|(tensor, pipeline, data, expert)| {
        let (tensor, attention_data) = (1 << tensor, 1 << data);
        Parallel { tensor, pipeline: 1 << pipeline, attention_data, expert: (1 << expert).min(tensor) }
    });
    let choices =
        (0..MODELS.len(), 0..CHIPS.len(), parallel, 0..Engine::ALL.len(), 0..WeightFormat::ALL.len());
    (choices, 0u32..4, any::<bool>()).prop_map(|((model, chip, parallel, engine, format), drafts, serial)| {
        let model = ServedModel::named(MODELS[model]).expect("known");
        let engine = Engine::ALL[engine];
        let mut made =
            Deployment::new(model, WeightFormat::ALL[format], hardware(CHIPS[chip]), parallel, engine);
        let tokens_per_step = 1.0 + f64::from(drafts) / 2.0;
        made.speculation = (drafts > 0).then_some(Speculation { drafts, tokens_per_step });
        made.host = if serial { HostWork::Serial } else { HostWork::Overlapped };
        made.adjustment = Adjustment { step: 1.0 + f64::from(drafts) / 10.0, first_token: 0.0 };
        Replica::new(made, &ServingConstants::builtin()).expect("a layout with meaning")
    })
}

fn any_shape() -> impl Strategy<Value = StepShape> {
    (0u64..20_000, 0u64..9_000, 0u32..600, 1u64..5_000).prop_map(|(tokens, prefix, decodes, each)| {
        let mut shape = StepShape::decode(decodes, u64::from(decodes) * each);
        shape.add_prefill(prefix, tokens);
        shape
    })
}

proptest! {
    #[test]
    fn the_timer_and_the_breakdown_agree(replica in any_replica(), shape in any_shape()) {
        let (fast, whole) = (replica.timer().seconds(&shape), replica.step(&shape).total().get());
        prop_assert!(fast.is_finite() && fast >= 0.0);
        prop_assert!((fast - whole).abs() <= 1e-9 * fast.max(1e-9), "{fast} {whole}");
    }

    #[test]
    fn a_stretch_of_decodes_is_the_sum_of_its_steps(
        replica in any_replica(), decodes in 1u32..300, each in 1u64..6_000, steps in 1u64..200,
    ) {
        let context = u64::from(decodes) * each;
        let growth = u64::from(decodes);
        let step = |at: u64| replica.timer().seconds(&StepShape::decode(decodes, context + at * growth));
        let one_by_one: f64 = (0..steps).map(step).sum();
        let jumped = replica.timer().decode_seconds(decodes, context, growth, steps);
        prop_assert!((jumped / one_by_one - 1.0).abs() < 1e-9, "{jumped} {one_by_one}");
    }

    #[test]
    fn a_decode_line_holds_up_to_its_end(replica in any_replica(), decodes in 1u32..300, each in 1u64..6_000) {
        let context = u64::from(decodes) * each;
        let line = replica.timer().decode_line(decodes, context);
        for at in [context, context + 1, (context + 1000).min(line.until)] {
            let exact = replica.timer().seconds(&StepShape::decode(decodes, at));
            prop_assert!((line.seconds(at) / exact - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn more_work_never_takes_less_time(replica in any_replica(), shape in any_shape(), more in 1u64..2_000) {
        let mut larger = shape;
        larger.add_prefill(0, more);
        let context = StepShape { decode_context: shape.decode_context + more, ..shape };
        let seconds = replica.timer().seconds(&shape);
        // With more prompts than before, attention data ranks may share work that one rank had alone.
        if replica.deployment().parallel.attention_data == 1 {
            prop_assert!(replica.timer().seconds(&larger) >= seconds);
        }
        prop_assert!(shape.decodes == 0 || replica.timer().seconds(&context) >= seconds);
    }

    #[test]
    fn closed_loops_conserve_users(replica in any_replica(), users in 1u32..40, input in 1u32..3000, output in 1u32..300) {
        let lengths = |longest| LengthSpread { longest, shortest_share: 0.8 };
        let load = ClosedLoop { concurrency: users, requests: users * 5, input: lengths(input), output: lengths(output), prefixes: Prefixes::default() };
        let Some(found) = closed_loop(&replica, &load) else { return Ok(()) };
        prop_assert!(found.first_token > 0.0 && found.inter_token >= 0.0);
        prop_assert!(found.end_to_end >= found.first_token);
        // Little's law: X R = N, but for the end, when users have no more to ask.
        let in_flight = found.output_tokens_per_second / load.output.mean() * found.end_to_end;
        prop_assert!(in_flight <= f64::from(users) * 1.15 + 0.1, "{in_flight} of {users}");
    }

    #[test]
    fn one_user_waits_for_every_answer(replica in any_replica(), input in 1u32..3000, output in 1u32..50, way in 0.0..3.0) {
        let adjustment = Adjustment { first_token: way, ..replica.deployment().adjustment };
        let slow = Deployment { adjustment, ..replica.deployment().clone() };
        let slow = Replica::new(slow, &ServingConstants::builtin()).expect("the same layout");
        let load = ClosedLoop { concurrency: 1, requests: 20, input: LengthSpread::fixed(input), output: LengthSpread::fixed(output), prefixes: Prefixes::default() };
        let Some(found) = closed_loop(&slow, &load) else { return Ok(()) };
        let in_flight = found.output_tokens_per_second / f64::from(output) * found.end_to_end;
        prop_assert!((in_flight - 1.0).abs() < 1e-9, "{in_flight} of 1");
        let pools = Pools { prefill: &slow, prefill_workers: 1, decode: &slow, decode_workers: 1, link: KvLink::ScaleUp, hand_off: way };
        let Some(found) = disaggregated(&pools, &load) else { return Ok(()) };
        let in_flight = found.output_tokens_per_second / f64::from(output) * found.end_to_end;
        prop_assert!((in_flight - 1.0).abs() < 1e-6, "{in_flight} of 1 with pools");
    }
}

/// SGLang's large-scale EP blog (May 2025): DeepSeek-V3 in fp8, experts over 32 H100 with DeepEP and two batches, 16k tokens a GPU and step.
#[test]
fn prompts_of_wide_expert_parallelism_take_as_long_as_published() {
    let wide = Parallel { tensor: 1, pipeline: 1, expert: 32, attention_data: 32 };
    let made = Deployment { engine: Engine::Sglang, ..deployment("deepseek-v3", "h100", wide) };
    let replica = Replica::new(made, &ServingConstants::builtin()).expect("a layout with meaning");
    for (length, published) in [(1024, 57_674.0), (2048, 54_543.0), (4096, 50_302.0)] {
        let mut shape = StepShape::default();
        for _ in 0..32 * 16_384 / length {
            shape.add_prefill(0, length);
        }
        let per_node = 8.0 * 16_384.0 / replica.timer().seconds(&shape);
        let off: f64 = per_node / published - 1.0;
        assert!(off.abs() < 0.15, "{per_node:.0} tokens/s of a node for prompts of {length}: {off:+.2}");
        let step = replica.step(&shape);
        assert!(step[Part::ScaleOut].hidden > step[Part::ScaleOut].exposed, "exchanges are hidden");
    }
}

/// A rank that has a narrow slice of every expert multiplies slower than one that has few whole ones.
#[test]
fn narrow_slices_of_experts_multiply_slower() {
    let compute = |expert: u32| {
        let parallel = Parallel { expert, ..Parallel::tensor(8) };
        let step = replica("qwen3.5-397b-a17b", "h200", parallel).step(&StepShape::prefill(0, 16_384));
        step[Part::Compute].exposed.get()
    };
    assert!(compute(1) > 1.1 * compute(8), "{} {}", compute(1), compute(8));
}

#[test]
fn a_model_that_does_not_fit_is_refused_by_how_much() {
    let small = replica("llama-3.3-70b", "l4", Parallel::ONE);
    let KvRoom::DoesNotFit { over_per_gpu } = small.memory().room else { panic!("70 GB fit into 24") };
    assert!((45e9..55e9).contains(&over_per_gpu.get()), "{over_per_gpu}");
    let load = ClosedLoop {
        concurrency: 1,
        requests: 1,
        input: LengthSpread::fixed(10),
        output: LengthSpread::fixed(10),
        prefixes: Prefixes::default(),
    };
    assert_eq!(closed_loop(&small, &load), None);
}

#[test]
fn room_for_the_cache_is_what_memory_leaves() {
    let one = replica("llama-3.1-8b", "h100", Parallel::ONE);
    // 32 layers, 8 heads of 128 for keys and values in bf16.
    assert_eq!(one.memory().kv_per_token.get(), 131_072.0);
    let KvRoom::Fits { tokens, blocks, bytes } = one.memory().room else { panic!("8 GB fit into 80") };
    assert_eq!(blocks, tokens / 16);
    assert!((bytes.get() / 131_072.0 - tokens as f64).abs() < 1.0);
    // A latent is kept by every tensor rank, so ranks add no room beyond what weights leave.
    let latent = replica("deepseek-v3", "h200", Parallel::tensor(8));
    assert_eq!(latent.memory().kv_per_token.get(), 8.0 * 61.0 * 576.0 * 2.0);
}

#[test]
fn degrees_without_meaning_are_errors() {
    let constants = ServingConstants::builtin();
    let with = |parallel| Replica::new(deployment("deepseek-v3", "h200", parallel), &constants);
    assert!(with(Parallel { tensor: 0, ..Parallel::ONE }).is_err());
    assert!(with(Parallel { tensor: 8, expert: 3, ..Parallel::ONE }).is_err());
    assert!(with(Parallel { tensor: u32::MAX, pipeline: u32::MAX, ..Parallel::ONE }).is_err());
}

#[test]
fn what_limits_a_step_is_named() {
    let dense = replica("llama-3.1-8b", "h100", Parallel::ONE);
    assert_eq!(dense.step(&StepShape::decode(1, 1000)).limit(), Some(Part::Memory));
    assert_eq!(dense.step(&StepShape::prefill(0, 8192)).limit(), Some(Part::Compute));
    let serial = Deployment { host: HostWork::Serial, ..dense.deployment().clone() };
    let serial = Replica::new(serial, &ServingConstants::builtin()).unwrap();
    let shape = StepShape::decode(8, 8000);
    assert!(serial.step(&shape)[Part::Host].exposed > dense.step(&shape)[Part::Host].exposed);
    assert!(!dense.step(&shape)[Part::Host].hidden.is_zero());
}

#[test]
fn ranks_beyond_a_domain_talk_over_the_network() {
    let inside = replica("deepseek-v3", "h200", Parallel::tensor(8));
    let across = replica("deepseek-v3", "h200", Parallel::tensor(16));
    let shape = StepShape::decode(32, 32_000);
    assert!(inside.step(&shape)[Part::ScaleOut].exposed.is_zero());
    assert!(!across.step(&shape)[Part::ScaleOut].exposed.is_zero());
    let stages = replica("llama-3.3-70b", "h100", Parallel { pipeline: 4, tensor: 2, ..Parallel::ONE });
    assert!(stages.timer().seconds(&shape) > 0.0);
}

#[test]
fn caches_move_faster_over_faster_links() {
    let catalog = Catalog::builtin();
    let one = replica("llama-3.3-70b", "h100", Parallel::tensor(8));
    let links = [KvLink::ScaleUp, KvLink::ScaleOut, KvLink::Host].map(|link| one.kv_transfer(8192, link));
    assert!(links[0] < links[1] && links[1] < links[2], "{links:?}");
    let start = |class: &str| one.cold_start(catalog.storage_class(class).unwrap());
    assert!(start("nvme-local").total() < start("ebs-gp3").total());
    assert!((start("nvme-local").bytes_per_host.get() / 72e9 - 1.0).abs() < 0.1);
}

/// Eight ranks send what one has to receive over a single link.
#[test]
fn fewer_receivers_make_a_transfer_longer() {
    let many = replica("llama-3.1-8b", "h100", Parallel::tensor(8));
    let one = replica("llama-3.1-8b", "h100", Parallel::ONE);
    let moved = |from: &Replica, to: &Replica| from.kv_transfer_to(to, 8192, KvLink::ScaleOut);
    assert_eq!(moved(&many, &one), one.kv_transfer(8192, KvLink::ScaleOut));
    assert_eq!(moved(&one, &many), moved(&many, &one));
    assert!(moved(&many, &many) < moved(&many, &one));
}

/// A request waits for half an interval on average; a prompt's step is followed by a poll.
#[test]
fn an_engine_that_polls_rarely_answers_later() {
    let load = users(16, 320, 1000, 1000);
    let polled = |receive_interval: u32| {
        let mut made = deployment("llama-3.3-70b", "h200", Parallel::tensor(8));
        made.settings.receive_interval = receive_interval;
        closed_loop(&Replica::new(made, &ServingConstants::builtin()).unwrap(), &load).unwrap()
    };
    let (often, rarely) = (polled(1), polled(30));
    let later = (rarely.first_token - often.first_token) / often.inter_token;
    assert!((10.0..18.0).contains(&later), "{later} steps");
}

/// TensorRT-LLM lets prompts wait until every attention data rank has one: alone, a prompt holds up all ranks for as long.
#[test]
fn prompts_that_wait_for_each_other_share_a_step() {
    let load = users(64, 640, 8000, 1000);
    let waiting = |steps: f64, load: &ClosedLoop| {
        let parallel = Parallel { tensor: 1, pipeline: 1, expert: 8, attention_data: 8 };
        let mut made = deployment("deepseek-v3", "b200", parallel);
        made.engine = Engine::TensorRtLlm;
        made.settings = Engine::TensorRtLlm.settings(&made.hardware);
        let constants = ServingConstants { balance_wait: steps, ..ServingConstants::builtin() };
        closed_loop(&Replica::new(made, &constants).unwrap(), load).unwrap()
    };
    let (alone, together) = (waiting(0.0, &load), waiting(60.0, &load));
    assert!(together.inter_token < 0.8 * alone.inter_token, "{alone:?} {together:?}");
    assert!(together.output_tokens_per_second > 1.2 * alone.output_tokens_per_second);
    let few = ClosedLoop { concurrency: 4, requests: 40, ..load };
    assert_eq!(waiting(0.0, &few), waiting(60.0, &few), "ranks without work wait for nobody");
}

#[test]
fn layers_of_linear_attention_take_longer_whatever_the_model() {
    for (model, takes) in [("qwen3-next-80b-a3b", true), ("qwen3.5-397b-a17b", true), ("llama-3.1-8b", false)]
    {
        let step = |linear_latency: f64| {
            let constants = ServingConstants { linear_latency, ..ServingConstants::builtin() };
            let replica = Replica::new(deployment(model, "h200", Parallel::tensor(8)), &constants).unwrap();
            replica.timer().seconds(&StepShape::decode(4, 4000))
        };
        assert_eq!(step(1e-3) > step(1e-5), takes, "{model}");
    }
}

/// A batch wait ends after so many steps, or when a step is nearly full.
#[test]
fn a_full_step_does_not_wait() {
    let first_token = |batch_wait: u32, chunk: u32| {
        let load = users(16, 320, 1000, 1000);
        let mut made = deployment("llama-3.3-70b", "h200", Parallel::tensor(8));
        (made.settings.batch_wait, made.settings.chunk) = (batch_wait, chunk);
        let latency = closed_loop(&Replica::new(made, &ServingConstants::builtin()).unwrap(), &load).unwrap();
        (latency.first_token, latency.inter_token)
    };
    let ((at_once, step), (waited, _)) = (first_token(0, 8192), first_token(20, 8192));
    let later = (waited - at_once) / step;
    assert!((5.0..25.0).contains(&later), "{later} steps");
    assert_eq!(first_token(0, 900), first_token(20, 900), "a prompt fills a step of 900 tokens");
}

#[test]
fn pools_trade_first_tokens_for_steady_answers() {
    let one = replica("llama-3.3-70b", "h200", Parallel::tensor(4));
    let load = users(32, 320, 4000, 300);
    let pools = Pools {
        prefill: &one,
        prefill_workers: 1,
        decode: &one,
        decode_workers: 1,
        link: KvLink::ScaleOut,
        hand_off: 0.02,
    };
    assert_eq!(pools.gpus(), 8);
    let apart = disaggregated(&pools, &load).unwrap();
    let together = closed_loop(&one, &load).unwrap();
    assert!(apart.inter_token < together.inter_token);
    assert_eq!(disaggregated(&Pools { decode_workers: 0, ..pools }, &load), None);
}

#[test]
fn a_site_file_reads_back_what_was_written() {
    let made = deployment("llama-3.1-8b", "h100", Parallel::tensor(2));
    let mut site = Site::default();
    site.add(Site::key(&made, "H100"), Adjustment { step: 1.25, first_token: -0.5 });
    let text = site.to_toml();
    let read = Site::read(bedplate_diag::Source::new("site.toml", &text)).unwrap();
    assert_eq!(read, site);
    assert_eq!(read.find(&made, "h100"), Some(Adjustment { step: 1.25, first_token: -0.5 }));
    assert_eq!(read.find(&made, "h200"), None);
    let wrong = text.replace("1.25", "-1");
    assert!(Site::read(bedplate_diag::Source::new("site.toml", &wrong)).is_err());
}

#[test]
fn constants_are_valid_and_no_more_than_forty_are_fitted() {
    let builtin = ServingConstants::builtin();
    let text = builtin.to_toml();
    let read =
        ServingConstants::read(bedplate_diag::Source::new("c.toml", &text), ServingConstants::priors());
    assert_eq!(read.unwrap(), builtin);
    let fitted = ServingConstants::FIELDS.iter().filter(|field| field.origin == Origin::Serving).count();
    assert!(fitted <= 40, "{fitted}");
}

/// A pass crosses all stages, and so the adapters of all layers.
#[test]
fn stages_take_as_long_for_adapters_as_one() {
    let adding = |pipeline: u32| {
        let step = |adapters: Option<LoadedAdapters>| {
            let parallel = Parallel { pipeline, ..Parallel::tensor(1) };
            let deployment = Deployment { adapters, ..deployment("llama-3.1-8b", "h100", parallel) };
            let replica =
                Replica::new(deployment, &ServingConstants::builtin()).expect("a layout with meaning");
            replica.timer().seconds(&StepShape::decode(8 * pipeline, 1))
        };
        step(Some(LoadedAdapters { loaded: 1, rank: 64 })) - step(None)
    };
    let (one, four) = (adding(1), adding(4));
    assert!((four / one - 1.0).abs() < 1e-6, "{four} against {one}");
}

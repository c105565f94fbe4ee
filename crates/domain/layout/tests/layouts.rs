//! Layouts read back as they print, refuse with reasons, and number their ranks without gaps.

use bedplate_diag::render_text;
use bedplate_layout::*;
use bedplate_transformer::builtin;
use proptest::prelude::*;

#[test]
fn one_spelling_comes_out_whatever_order_goes_in() {
    for (typed, printed) in [
        ("dp8.tp4.pp2.ep8", "dp8.tp4.pp2.ep8"),
        ("EP8.pp2.TP4.dp8", "dp8.tp4.pp2.ep8"),
        ("tp1.dp1", "dp1"),
        ("fsdp.dp64.mb2.recompute-full", "dp64.zero3.mb2.recompute-full"),
        ("fp8.sp.tp8.hsdp8.dp16", "dp16.tp8.sp.hsdp8.fp8"),
        ("bf16.dp2", "dp2"),
        ("vpp2.pp4.cp2.etp2.ep4.dp4", "dp4.cp2.pp4.vpp2.ep4.etp2"),
    ] {
        assert_eq!(typed.parse::<Layout>().unwrap().to_string(), printed);
    }
}

#[test]
fn misspelt_layouts_say_what_was_meant() {
    let told = |typed: &str| render_text(&typed.parse::<Layout>().unwrap_err());
    assert_eq!(
        told("dp8.tq4"),
        "error[layout/bad-spelling]: `tq4` is not a part of a layout\nhelp:  write it like `dp8.tp4.pp2` or `dp64.tp8.sp.zero1.mb2`\n"
    );
    assert!(told("dp8.recompute-ful").contains("did you mean `recompute-full`?"));
    assert!(told("dp0").contains("`dp0` needs a whole number from 1 to 1,000,000 after `dp`"));
    assert!(told("dp99999999999999999999").contains("needs a whole number"));
    assert!(told("dp8.dp4").contains("says `dp8` and `dp4`, which set the same thing"));
    assert!(told("zero1.hsdp4").contains("says `zero1` and `hsdp4`"));
    assert!(told("  ").contains("a layout is missing"));
    assert!(told("dp8..tp2").contains("`` is not a part"));
}

fn refused(model: &str, layout: &str, gpus: Option<u64>, batch: Option<(u64, u64)>) -> Vec<String> {
    let batch = batch.map(|(sequence, global_batch)| Batch { sequence, global_batch });
    let layout: Layout = layout.parse().expect("the layout is spelled well");
    let model = builtin(model).expect("the model is built in");
    layout.refusals(&model, gpus, batch).iter().map(ToString::to_string).collect()
}

#[test]
fn every_rule_refuses_with_its_reason() {
    let legal: Vec<String> = Vec::new();
    assert_eq!(refused("llama-3.1-70b", "dp8.tp8.sp.pp4", Some(256), Some((8192, 512))), legal);
    assert_eq!(refused("deepseek-v3", "dp64.pp16.ep64", Some(1024), None), legal);
    let rows: &[(&str, &str, &str)] = &[
        ("llama-3.1-70b", "tp3", "tp3 does not divide the 64 attention heads"),
        ("llama-3.1-70b", "sp", "sp splits what a tensor group holds, so it needs tp2 or more"),
        ("llama-3.1-70b", "vpp2", "vpp2 interleaves pipeline stages, so it needs pp2 or more"),
        ("llama-3.1-70b", "pp81", "pp81 x vpp1 makes more chunks than the 80 layers"),
        (
            "llama-3.1-70b",
            "pp4.first70.last9",
            "first70.last9 does not go with 80 layers on pp4 stages, each of which needs one",
        ),
        (
            "llama-3.1-70b",
            "dualpipe",
            "`dualpipe` orders the work of pipeline stages, so it needs pp2 or more",
        ),
        ("llama-3.1-70b", "pp5.dualpipe", "dualpipe lets micro-batches in at both ends, so pp5 must be even"),
        (
            "llama-3.1-70b",
            "pp4.vpp2.zero-bubble",
            "`zero-bubble` cuts no stage into chunks, so it does not go with vpp2",
        ),
        ("llama-3.1-70b", "dp8.ep8", "`ep` spreads experts, and the model has none"),
        ("mixtral-8x7b", "dp16.ep16", "ep16 does not divide the 8 routed experts"),
        ("mixtral-8x7b", "dp4.ep8", "ep8 x etp1 does not divide the 4 ranks of a stage (dp x tp x cp)"),
        (
            "llama-3.1-70b",
            "dp8.hsdp3",
            "hsdp3 does not divide the 8 ranks that hold the same weights (dp x cp)",
        ),
        ("qwen2.5-7b", "tp7", "tp7 and 4 key-value heads: neither divides the other"),
    ];
    for (model, layout, reason) in rows {
        let refusals = refused(model, layout, None, None);
        assert!(refusals.iter().any(|found| found == reason), "{layout}: {refusals:?}");
    }
    assert_eq!(
        refused("llama-3.1-70b", "dp8", Some(16), None),
        ["the layout uses 8 GPUs, the cluster has 16"]
    );
    assert_eq!(
        refused("llama-3.1-70b", "dp8.cp4", None, Some((8190, 12))),
        [
            "cp4 cuts a causal sequence into 8 pieces, which do not divide 8190 tokens",
            "dp8 x mb1 does not divide the global batch of 12 sequences"
        ]
    );
    assert_eq!(
        refused("llama-3.1-70b", "dp2.pp4.vpp2", None, Some((8192, 12))),
        ["vpp needs the 6 micro-batches of a step to be a multiple of pp4"]
    );
}

#[test]
fn zero_degrees_are_refused_and_not_divided_by() {
    let layout = Layout { tensor: 0, ..Layout::default() };
    assert_eq!(
        layout.refusals(&builtin("gpt2").unwrap(), None, None),
        [LayoutRefusal::ZeroDegree { part: "tp" }]
    );
    assert!(RankMap::new(&layout).is_err());
    let layout = Layout { data: 1 << 20, tensor: 1 << 20, ..Layout::default() };
    assert_eq!(RankMap::new(&layout), Err(LayoutRefusal::TooManyRanks));
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let sharding = prop_oneof![
        Just(Sharding::None),
        Just(Sharding::Optimizer),
        Just(Sharding::Gradients),
        Just(Sharding::Weights),
        (1u32..9).prop_map(Sharding::WeightsWithin)
    ];
    let recompute = prop_oneof![Just(Recompute::None), Just(Recompute::Selective), Just(Recompute::Full)];
    let precision = prop_oneof![
        Just(ComputePrecision::Fp32),
        Just(ComputePrecision::Bf16),
        Just(ComputePrecision::Fp16),
        Just(ComputePrecision::Fp8),
        Just(ComputePrecision::Fp4)
    ];
    let degrees = proptest::array::uniform8(1u32..7);
    (degrees, any::<bool>(), sharding, recompute, precision).prop_map(
        |(
            [data, tensor, context, pipeline, virtual_stages, expert, expert_tensor, micro_batch],
            is_sequence_parallel,
            sharding,
            recompute,
            precision,
        )| Layout {
            data,
            tensor,
            is_sequence_parallel,
            context,
            pipeline,
            virtual_stages,
            ends: Ends { first: (data > 3).then_some(tensor), last: (data == 5).then_some(expert) },
            schedule: [Schedule::Alternating, Schedule::ZeroBubble, Schedule::DualPipe][context as usize % 3],
            expert,
            expert_tensor,
            sharding,
            micro_batch,
            recompute,
            precision,
        },
    )
}

const DIMENSIONS: [Dimension; 8] = [
    Dimension::Tensor,
    Dimension::Context,
    Dimension::Data,
    Dimension::DataWithContext,
    Dimension::Pipeline,
    Dimension::Expert,
    Dimension::ExpertTensor,
    Dimension::ExpertData,
];

proptest! {
    #[test]
    fn printing_and_reading_is_the_identity(layout in any_layout()) {
        prop_assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "([a-z]{1,4}[0-9]{0,3}\\.?|\\PC){0,20}") {
        let _ = text.parse::<Layout>();
    }

    #[test]
    fn ranks_and_coordinates_are_one_to_one(layout in any_layout()) {
        let Ok(map) = RankMap::new(&layout) else { return Ok(()) };
        for rank in 0..map.world() {
            prop_assert_eq!(map.rank(&map.coordinates(rank)), rank);
        }
    }

    #[test]
    fn the_groups_of_a_dimension_hold_every_rank_once(layout in any_layout()) {
        let Ok(map) = RankMap::new(&layout) else { return Ok(()) };
        for dimension in DIMENSIONS {
            let mut seen: Vec<u32> = map.groups(dimension).flat_map(Group::ranks).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..map.world()).collect::<Vec<_>>(), "{:?}", dimension);
        }
    }

    #[test]
    fn members_of_a_group_differ_only_along_it(layout in any_layout()) {
        let Ok(map) = RankMap::new(&layout) else { return Ok(()) };
        for group in map.groups(Dimension::Expert) {
            let stages: Vec<Coordinates> = group.ranks().map(|rank| map.coordinates(rank)).collect();
            let first = stages[0];
            prop_assert!(stages.iter().all(|at| at.pipeline == first.pipeline
                && at.expert_tensor == first.expert_tensor
                && at.expert_data == first.expert_data));
        }
        for group in map.groups(Dimension::Tensor) {
            let first = map.coordinates(group.first);
            prop_assert!(group.ranks().map(|rank| map.coordinates(rank)).all(|at| at.data == first.data
                && at.context == first.context
                && at.pipeline == first.pipeline));
        }
    }
}

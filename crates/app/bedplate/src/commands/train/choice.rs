//! `--layout auto`: the layout with which ranks of this machine are predicted to be fastest, among those that fit.

use bedplate_layout::Layout;
use bedplate_local::host::host_entry;
use bedplate_local::host_run;
use bedplate_local::machine::memory_for_programs_mib;
use bedplate_perf::MemoryUse;
use bedplate_search::{HostChoice, HostQuestion, NoHostLayout};
use bedplate_serve::FreeMemory;
use bedplate_terminal::Context;
use bedplate_train::{Needs, TrainConfig, TrainError, read_architecture};
use bedplate_units::Bytes;

pub(super) fn choose(
    config: &TrainConfig,
    context: &Context,
    ranks: u32,
    survives: bool,
) -> Result<HostChoice, TrainError> {
    let model = read_architecture(&config.model.config)?.transformer;
    let each = Bytes::new(memory_for_programs_mib() as f64 * 1024.0 * 1024.0) / f64::from(ranks);
    let question = HostQuestion { model: &model, run: host_run(config, ranks, survives), ranks, each };
    question.choose(host_entry(context.load_catalog().ok().as_ref()).as_ref()).map_err(
        |reason| match reason {
            NoHostLayout::TooLarge { memory } => TrainError::TooLarge {
                needs: Box::new(needs(&memory)),
                free: FreeMemory::of_host(each),
                fits: None,
            },
            NoHostLayout::TooFewMicroBatches => TrainError::UnsupportedLayout {
                layout: Layout { data: ranks, ..Layout::ONE },
                why: format!("a step has fewer micro-batches than the {ranks} ranks"),
            },
        },
    )
}

fn needs(memory: &MemoryUse) -> Needs {
    Needs {
        state: memory.weights + memory.gradients + memory.optimizer + memory.communication,
        activations: memory.activations + memory.logits,
        program: memory.workspace,
        copies: memory.copies,
    }
}

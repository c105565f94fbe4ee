//! Logs as programs and launchers mangle them.

use std::sync::OnceLock;

use bedplate_logs::{Field, Log, LogReader, PhaseKind, Recognizer};
use proptest::prelude::*;

/// Made once: it compiles every pattern.
fn recognizer() -> &'static Recognizer {
    static BUILT_IN: OnceLock<Recognizer> = OnceLock::new();
    BUILT_IN.get_or_init(Recognizer::built_in)
}

fn read(text: &str) -> Log {
    let recognizer = recognizer();
    let mut reader = LogReader::new(recognizer);
    reader.feed(text.as_bytes());
    reader.finish()
}

fn steps(log: &Log) -> Vec<(u64, Option<f64>, Option<u32>)> {
    log.steps.iter().map(|step| (step.step, step.seconds, log.origins[step.origin].rank)).collect()
}

const MEGATRON: &str = " [2025-12-19 10:49:15] iteration       10/     100 | consumed samples: 1280 | elapsed time per iteration (ms): 500.0 | lm loss: 2.5E+00 |";

#[test]
fn every_entry_of_the_tables_reads_its_samples() {
    let recognizer = recognizer();
    let formats = recognizer.formats();
    assert!(formats.iter().filter(|format| format.kind.name() == "training").count() >= 25);
    assert!(formats.iter().filter(|format| format.kind.name() == "serving").count() >= 5);
    assert!(recognizer.signatures().len() >= 120);
}

#[test]
fn ranks_in_turns_colours_bars_and_windows_line_ends() {
    let log = read(&format!(
        "[rank3]:{MEGATRON}\r\n\x1b[36m[rank1]:\x1b[0m{MEGATRON}\n  0%|  | 0/50 [00:00<?, ?it/s]\r  2%|▏ | 1/50 [00:03<02:27,  3.00s/it]\r"
    ));
    assert_eq!(
        steps(&log),
        [(10, Some(0.5), Some(3)), (10, Some(0.5), Some(1)), (0, None, None), (1, None, None)]
    );
    assert_eq!(log.steps[3].elapsed, Some(3.0));
    assert_eq!(log.steps[0].value(Field::Loss), Some(2.5));
    assert_eq!(log.steps[0].line, 1);
    assert_eq!(log.steps[1].line, 2);
}

#[test]
fn a_line_that_was_wrapped_is_put_together() {
    let line = "[rank2]:[E513 13:25:57.714 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn=1, N";
    let log = read(&format!(
        "{line}\numelOut=1, Timeout(ms)=600000) ran for 600002 milliseconds before timing out.\n"
    ));
    let recognizer = recognizer();
    let names: Vec<&str> =
        log.signs.iter().map(|sign| recognizer.signatures()[sign.signature].name.as_str()).collect();
    assert!(names.contains(&"nccl-watchdog-timeout"), "{names:?}");
    let sign = &log.signs[names.iter().position(|name| *name == "nccl-watchdog-timeout").unwrap()];
    assert_eq!((sign.rank, sign.captured("ran")), (Some(2), Some("600002")));
}

#[test]
fn phases_lie_between_steps() {
    let log = read(&format!(
        "{MEGATRON}\nsaving checkpoint at iteration 10 to /x\n{MEGATRON}\n validation loss at iteration 10 | lm loss value: 2\n"
    ));
    let phases: Vec<(PhaseKind, usize)> =
        log.phases.iter().map(|mark| (mark.kind, mark.after_steps)).collect();
    assert_eq!(phases, [(PhaseKind::Save, 1), (PhaseKind::Evaluate, 2)]);
}

#[test]
fn bars_of_other_work_are_no_steps() {
    for bar in [
        "Map:  10%|█ | 10/100 [00:01<00:09, 9.9it/s]",
        "Loading checkpoint shards: 100%|█| 4/4 [00:05<00:00, 1.2s/it]",
        "Validation DataLoader 0: 5%|▏| 1/20 [00:00<00:10, 1.9it/s]",
    ] {
        assert!(read(bar).steps.is_empty(), "{bar}");
    }
    assert_eq!(read("Epoch 0:   6%|█ | 32/500 [0:28:43<4:39:17,  1.37it/s, loss=2.6]").steps.len(), 1);
}

#[test]
fn memory_is_bounded_and_binary_files_are_told() {
    let recognizer = recognizer();
    let mut reader = LogReader::new(recognizer);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        reader.feed(&piece);
    }
    let error = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n".repeat(2000);
    reader.feed(&error);
    let log = reader.finish();
    assert!(log.signs.len() <= 1200 && log.dropped > 500, "{} and {}", log.signs.len(), log.dropped);
    assert!(!log.is_binary);

    let mut reader = LogReader::new(recognizer);
    reader.feed(&[0; 4096]);
    assert!(reader.finish().is_binary);
}

proptest! {
    /// Pieces of any size give the same log.
    #[test]
    fn the_size_of_pieces_does_not_matter(cuts in prop::collection::vec(1_usize..400, 1..40)) {
        let text = format!("start\n{MEGATRON}\r\n[rank1]:{MEGATRON}\nCUDA out of memory. Tried to allocate 1 GiB\n 5%|▏ | 1/20 [00:03<02:27,  3.00s/it]\rsaving checkpoint\nend");
        let recognizer = recognizer();
        let mut reader = LogReader::new(recognizer);
        let mut rest = text.as_bytes();
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            reader.feed(piece);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(reader.finish(), read(&text));
    }

    /// No bytes make it fail.
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let recognizer = recognizer();
        let mut reader = LogReader::new(recognizer);
        reader.feed(&bytes);
        reader.finish();
    }
}

//! A run that trains nothing, to see what it says: `cargo run -p bedplate-record --example rehearsal FOLDER [RESUME_AFTER]`.
//!
//! Writes lines and events to the folder, offers metrics while it runs, and draws progress.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use bedplate_breakdown::{Breakdown, Part, Span};
use bedplate_record::{Endpoint, EvaluationRecord, EventFile, Exposure, Progress, RecordLines, StepRecord};
use bedplate_units::{Bytes, Seconds};

const STEPS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("give a folder")?);
    let resumes_after: Option<u64> = arguments.next().map(|step| step.parse()).transpose()?;

    let mut events = EventFile::create(&folder, resumes_after)?;
    let path = folder.join("train.jsonl");
    let mut lines = resumes_after
        .map_or_else(|| RecordLines::create(&path), |step| RecordLines::resume(&path, step, None))?;
    let endpoint = Endpoint::start("127.0.0.1:0".parse()?, Exposure::Loopback)?;
    let mut progress = Progress::on_stderr(STEPS, Duration::from_secs(1));
    progress.say(&format!("metrics at http://{}/metrics", endpoint.address()));

    for step in resumes_after.unwrap_or(0) + 1..=STEPS {
        sleep(Duration::from_millis(30));
        let record = record(step);
        events.write_step(&record)?;
        lines.write_step(&record)?;
        endpoint.metrics().set_step(&record);
        progress.update(&record);
        if step % 25 == 0 {
            let sample = Some(format!("after {step} steps the model **says** nothing"));
            let loss = record.loss + 0.1;
            let evaluation =
                EvaluationRecord { step, loss: Some(loss), perplexity: Some(loss.exp()), sample };
            events.write_evaluation(&evaluation)?;
            lines.write_evaluation(&evaluation)?;
            endpoint.metrics().set_evaluation(&evaluation);
            progress.say(&format!("evaluation after step {step}: loss {loss:.3}"));
        }
    }
    progress.finish();
    writeln!(std::io::stdout(), "{}", events.path().display())?;
    Ok(())
}

fn record(step: u64) -> StepRecord {
    let exposed = |seconds| Span::exposed(Seconds::new(seconds));
    StepRecord {
        samples: None,
        step,
        tokens: 4096 * step,
        loss: 2.0 + 8.0 / (step as f64).sqrt(),
        gradient_norm: 1.0 / step as f64,
        learning_rate: 3e-4,
        tokens_per_second: 4096.0 / 0.03,
        mfu: Some(0.4),
        memory: Bytes::gib(1.5),
        breakdown: Breakdown::default()
            .with(Part::Compute, exposed(0.02))
            .with(Part::Optimizer, exposed(0.01)),
        predicted: Some(Breakdown::default().with(Part::Compute, exposed(0.025))),
        seconds: 0.03,
        ranks: None,
    }
}

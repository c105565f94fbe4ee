//! `bedplate watch`: any job observed, unchanged: its log or the command itself.

mod following;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use bedplate_diag::Source;
use bedplate_diagnose::{Case, NamedLog, diagnose};
use bedplate_evidence::Gathered;
use bedplate_logs::{Log, LogReader, Origin, Recognized, Recognizer, StepLine};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use serde_json::{Map, Value, json};

use crate::diagnosing::{recognizer, show};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate watch -- torchrun --nproc-per-node 8 train.py
  bedplate watch train.log
  bedplate watch --follow train.log
  kubectl logs -f trainer-0 | bedplate watch - --json
  bedplate watch --formats
  bedplate watch --try our-trainer.toml

A command runs as it would alone, and its output goes on as it comes; at its end
stands what was recognised, and what is wrong. With --json every step is an
object on a line of its own, and the command's output goes to standard error.
Formats and signatures of your own: docs/watch.md.")]
pub(crate) struct Arguments {
    /// A log; `-` reads standard input
    #[arg(value_name = "LOG", id = "watched_log", required_unless_present_any = ["command", "formats", "signatures", "sample"])]
    log: Option<String>,
    /// Also recognise formats and signatures of your own
    #[arg(long, value_name = "FILE")]
    own: Vec<String>,
    /// Go on at the end of the log as it grows, and say what is wrong as soon as that is sure
    #[arg(short, long, requires = "watched_log")]
    follow: bool,
    /// List the formats that are recognised
    #[arg(long)]
    formats: bool,
    /// List the errors that are recognised
    #[arg(long)]
    signatures: bool,
    /// Try a table of your own on its samples
    #[arg(long = "try", value_name = "FILE", id = "sample")]
    sample: Option<String>,
    /// The command to run and to watch
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "watched_log")]
    command: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    if let Some(path) = &arguments.sample {
        return try_table(path, &arguments.own, console);
    }
    let recognizer = recognizer(&arguments.own)?;
    if arguments.formats {
        return formats(&recognizer, console);
    }
    if arguments.signatures {
        return signatures(&recognizer, console);
    }
    match &arguments.log {
        Some(path) if arguments.follow => following::follow(path, &recognizer, console),
        Some(path) => watch_log(path, &recognizer, console),
        None => watch_command(&arguments.command, &recognizer, console),
    }
}

fn watch_log(path: &str, recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    let failed = |source| files::FileError::Read { path: path.to_owned(), source };
    let mut source: Box<dyn Read> = match path {
        "-" => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path).map_err(failed)?),
    };
    let mut reader = LogReader::new(recognizer).of(Origin::of_path(path));
    let mut said = 0;
    let mut piece = vec![0; 1 << 16];
    loop {
        match source.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => reader.feed(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error).into()),
        }
        said = say_steps(reader.so_far(), said, recognizer, console)?;
    }
    let log = reader.finish();
    say_steps(&log, said, recognizer, console)?;
    conclude(path, log, recognizer, console)
}

/// Prints the steps that are new, as JSON.
pub(super) fn say_steps(
    log: &Log,
    said: usize,
    recognizer: &Recognizer,
    console: &mut Console,
) -> Result<usize, CliError> {
    if console.is_json() {
        for step in log.steps.get(said..).unwrap_or(&[]) {
            console.line(&step_json(step, log, recognizer).to_string())?;
        }
    }
    Ok(log.steps.len())
}

fn step_json(step: &StepLine, log: &Log, recognizer: &Recognizer) -> Value {
    let format = &recognizer.formats()[step.format];
    let mut object = Map::new();
    object.insert("format".to_owned(), json!(format.name));
    object.insert("kind".to_owned(), json!(format.kind.name()));
    object.insert("line".to_owned(), json!(step.line));
    object.insert("step".to_owned(), json!(step.step));
    let origin = log.origins.get(step.origin);
    let mut add =
        |name: &str, value: Option<Value>| object.extend(value.map(|value| (name.to_owned(), value)));
    add("total", step.total.map(Value::from));
    add("seconds", step.seconds.map(Value::from));
    add("elapsed", step.elapsed.map(Value::from));
    add("at", step.stamp.map(|stamp| json!(stamp.seconds)));
    add("rank", origin.and_then(|origin| origin.rank).map(Value::from));
    add("local_rank", origin.and_then(|origin| origin.local_rank).map(Value::from));
    add("node", origin.and_then(|origin| origin.node.clone()).map(Value::from));
    for (field, value) in &step.values {
        add(field.name(), Some(json!(value)));
    }
    Value::Object(object)
}

/// What was recognised, and what is wrong.
fn conclude(name: &str, log: Log, recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    let bytes = log.bytes;
    let case = Case { logs: vec![NamedLog { name: name.to_owned(), log }], ..Case::default() };
    let diagnosis = diagnose(&case, recognizer);
    let gathered = Gathered { case, bytes, files: 1, ..Gathered::default() };
    if console.is_json() {
        return console.line(&json!({ "diagnosis": diagnosis }).to_string());
    }
    show(&diagnosis, &gathered, console)
}

/// Runs the command with its output going on as it comes.
fn watch_command(command: &[String], recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| ProgramError::Usage { message: "there is no command to watch".to_owned() })?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| files::FileError::Read { path: program.clone(), source })?;
    let (sender, pieces) = mpsc::sync_channel::<(bool, Vec<u8>)>(64);
    let is_json = console.is_json();
    let out = child.stdout.take().map(|source| carry(source, false, sender.clone()));
    let err = child.stderr.take().map(|source| carry(source, true, sender.clone()));
    drop(sender);
    // Two streams, two readers: half a line of one must not join half a line of the other.
    let mut readers = [LogReader::new(recognizer), LogReader::new(recognizer)];
    let mut said = [0, 0];
    for (is_error, piece) in pieces {
        let stream = usize::from(is_error);
        pass_on(&piece, is_error || is_json);
        readers[stream].feed(&piece);
        said[stream] = say_steps(readers[stream].so_far(), said[stream], recognizer, console)?;
    }
    for thread in [out, err].into_iter().flatten() {
        // A reader that ended early has lost output, not the job.
        let _ = thread.join();
    }
    let status = child.wait().map_err(|source| files::FileError::Read { path: program.clone(), source })?;
    let name = Path::new(program).display().to_string();
    let [out, err] = readers.map(LogReader::finish);
    let (main, other) = if out.steps.len() >= err.steps.len() { (out, err) } else { (err, out) };
    let bytes = main.bytes + other.bytes;
    let logs = vec![
        NamedLog { name: name.clone(), log: main },
        NamedLog { name: format!("{name} (other stream)"), log: other },
    ];
    let case = Case { logs, ..Case::default() };
    let diagnosis = diagnose(&case, recognizer);
    let gathered = Gathered { case, bytes, files: 2, ..Gathered::default() };
    if is_json {
        console.line(&json!({ "diagnosis": diagnosis }).to_string())?;
    } else {
        show(&diagnosis, &gathered, console)?;
    }
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(CliError::Job(u8::try_from(code).unwrap_or(1))),
        None => Err(CliError::Job(1)),
    }
}

fn carry(
    mut source: impl Read + Send + 'static,
    is_error: bool,
    sender: mpsc::SyncSender<(bool, Vec<u8>)>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        loop {
            match source.read(&mut piece) {
                Ok(0) => return,
                Ok(count) if sender.send((is_error, piece[..count].to_vec())).is_err() => return,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => {}
            }
        }
    })
}

/// The command's own output, to where it would have gone.
fn pass_on(piece: &[u8], to_error: bool) {
    // If nobody reads any more, the command still runs to its end.
    let _ = match to_error {
        true => io::stderr().write_all(piece),
        false => io::stdout().write_all(piece).and_then(|()| io::stdout().flush()),
    };
}

fn formats(recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let json = |format: &bedplate_logs::Format| json!({ "name": format.name, "title": format.title, "kind": format.kind.name(), "printed_by": format.printed_by });
        return console.json(&recognizer.formats().iter().map(json).collect());
    }
    let mut table = Table::new(vec![
        Column::left("FORMAT", 0),
        Column::left("KIND", 1),
        Column::left("PROGRAMS", 0),
        Column::left("PRINTED BY", 2),
    ]);
    for format in recognizer.formats() {
        table.row(vec![
            format.name.clone(),
            format.kind.name().to_owned(),
            format.title.clone(),
            format.printed_by.clone(),
        ]);
    }
    console.table(&table)
}

fn signatures(recognizer: &Recognizer, console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let json = |it: &bedplate_logs::Signature| json!({ "name": it.name, "class": it.class, "prior": it.prior, "culprit": it.culprit, "remedy": it.remedy, "source": it.source });
        return console.json(&recognizer.signatures().iter().map(json).collect());
    }
    let mut table = Table::new(vec![
        Column::left("SIGNATURE", 0),
        Column::left("CLASS", 0),
        Column::left("CULPRIT", 1),
        Column::left("REMEDY", 2),
    ]);
    for it in recognizer.signatures() {
        table.row(vec![it.name.clone(), it.class.clone(), it.culprit.clone(), it.remedy.clone()]);
    }
    console.table(&table)
}

/// Shows what the samples of a user's table give.
fn try_table(path: &str, own: &[String], console: &mut Console) -> Result<(), CliError> {
    let all: Vec<String> = std::iter::once(path.to_owned()).chain(own.iter().cloned()).collect();
    let recognizer = recognizer(&all)?;
    let text = files::read_text(path)?;
    let trials = recognizer.try_samples(Source::new(path, &text))?;
    if console.is_json() {
        let json = |trial: &bedplate_logs::Trial| json!({ "entry": trial.entry, "line": trial.line, "read": read_words(&trial.read, &recognizer) });
        return console.json(&trials.iter().map(json).collect());
    }
    let mut table =
        Table::new(vec![Column::left("ENTRY", 0), Column::left("READ", 0), Column::left("SAMPLE", 1)]);
    for trial in &trials {
        table.row(vec![trial.entry.clone(), read_words(&trial.read, &recognizer), trial.line.clone()]);
    }
    console.table(&table)
}

fn read_words(read: &Recognized, recognizer: &Recognizer) -> String {
    match read {
        Recognized::Step { format, step, seconds, elapsed, values } => {
            let mut words = vec![recognizer.formats()[*format].name.clone()];
            words.extend(step.map(|step| format!("step {step}")));
            words.extend(seconds.map(|seconds| format!("seconds {seconds}")));
            words.extend(elapsed.map(|elapsed| format!("elapsed {elapsed}")));
            words.extend(values.iter().map(|(field, value)| format!("{field} {value}")));
            words.join(", ")
        }
        Recognized::Phase(kind) => format!("phase {kind}"),
        Recognized::Signature(signature) => recognizer.signatures()[*signature].name.clone(),
    }
}

//! `bedplate job logs JOB`

mod all;

use std::io;

use bedplate_drivers::{JobId, LogQuery, OutputStream};
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate job logs 12
  bedplate job logs 12 --rank 3 --stderr
  bedplate job logs 12 --all -f
  bedplate job logs 12 -f")]
pub(crate) struct Arguments {
    /// The number of the job
    job: JobId,
    /// Go on until the job has ended
    #[arg(short, long)]
    follow: bool,
    /// Which rank
    #[arg(short, long, default_value_t = 0)]
    rank: u32,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Every rank of every task, both streams, each line labelled with its rank
    #[arg(short, long, conflicts_with_all = ["rank", "stderr", "offset"])]
    all: bool,
    /// An earlier run; the newest when left out
    #[arg(long, value_name = "NUMBER")]
    run: Option<u32>,
    /// Begin at this byte
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    offset: u64,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    if arguments.all {
        return all::run(arguments, &*driver, console);
    }
    let query = LogQuery {
        rank: arguments.rank,
        stream: if arguments.stderr { OutputStream::Stderr } else { OutputStream::Stdout },
        run: arguments.run,
        offset: arguments.offset,
        follow: arguments.follow,
    };
    if console.is_json() {
        let mut bytes = Vec::new();
        let next = driver.logs(&arguments.job, &query, &mut bytes)?;
        console.say_notes(driver.remarks());
        let text = String::from_utf8_lossy(&bytes);
        return console
            .json(&json!({ "job": arguments.job, "rank": query.rank, "text": text, "next_offset": next }));
    }
    driver.logs(&arguments.job, &query, &mut io::stdout().lock())?;
    console.say_notes(driver.remarks());
    Ok(())
}

pub(crate) use all::PAGES;

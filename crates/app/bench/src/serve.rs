//! `bedplate bench serve`: what clients of a server with OpenAI's API experience under load.

mod show;

use std::time::Duration;

use bedplate_diag::Source;
use bedplate_load::{Api, LoadError, LoadPace, LoadSummary, LoadTarget, NullServer, Plan, measure};
use bedplate_replay::requests::grammar;
use bedplate_replay::requests::{Arrivals, GeneratedLoad, Lengths, Planned, SharedPrefix, read_trace};
use bedplate_terminal::{CliError, Console, ProgramError, files};
use bedplate_units::Seconds;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench serve http://127.0.0.1:8000
  bedplate bench serve http://127.0.0.1:8000 --concurrency 32 --prompt 200..800 --output 128
  bedplate bench serve http://127.0.0.1:8000 --rate 4/s --requests 400 --shared-prefix 50
  bedplate bench serve http://127.0.0.1:8000 http://127.0.0.1:8001 --trace requests.jsonl
  bedplate bench serve --null

Any server with OpenAI's API can be measured: this program's, vLLM, SGLang. Prompts are made-up
tokens of exact lengths, and answers are as long as asked for, whatever the model would do. Two
addresses get the same requests one after the other, and the table has their ratios. The client's
own share of the times is measured at a server inside this program that answers at once.")]
pub(super) struct Arguments {
    /// One server, or two to be compared: http://HOST:PORT
    #[arg(value_name = "URL", num_args = 0..=2, required_unless_present = "null")]
    servers: Vec<String>,
    /// Measure the client alone, at a server that answers at once
    #[arg(long, conflicts_with = "servers")]
    null: bool,

    /// Closed loop: this many users, each of whom sends the next request when the last is answered
    #[arg(long, value_name = "USERS", default_value_t = 8, conflicts_with_all = ["rate", "trace"], value_parser = clap::value_parser!(u32).range(1..=16_384), help_heading = "Load")]
    concurrency: u32,
    /// Open loop: requests arrive at random, this many a second on average
    #[arg(long, value_name = "RATE", value_parser = grammar::rate, conflicts_with = "trace", help_heading = "Load")]
    rate: Option<f64>,
    /// Open loop: the requests of a trace at their times, CSV or JSON lines as `replay requests` reads them
    #[arg(long, value_name = "FILE", help_heading = "Load")]
    trace: Option<String>,
    /// How much faster than recorded the requests of a trace are sent
    #[arg(long, default_value_t = 1.0, requires = "trace", value_parser = positive, help_heading = "Load")]
    speed: f64,
    /// Requests to send; of a trace, the first ones
    #[arg(long, value_name = "COUNT", help_heading = "Load", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,
    /// Tokens of a prompt: `512`, or `200..800` for lengths in between
    #[arg(long, default_value = "512", value_parser = grammar::lengths, conflicts_with = "trace", help_heading = "Load")]
    prompt: Lengths,
    /// Tokens to generate: `64`, or `32..128`
    #[arg(long, default_value = "64", value_parser = grammar::lengths, conflicts_with = "trace", help_heading = "Load")]
    output: Lengths,
    /// Share of each prompt that a group of requests has in common, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), conflicts_with = "trace", help_heading = "Load")]
    shared_prefix: Option<u32>,
    /// How many different prefixes are shared
    #[arg(long, default_value_t = 8, help_heading = "Load")]
    prefix_groups: u32,
    #[arg(long, default_value_t = 0, help_heading = "Load")]
    seed: u64,

    /// The model to ask [default: the server's first]
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    model: Option<String>,
    /// The key that the servers ask for
    #[arg(
        long,
        value_name = "KEY",
        env = "BEDPLATE_API_KEY",
        hide_env_values = true,
        help_heading = "Requests"
    )]
    api_key: Option<String>,
    /// Send words to /v1/chat/completions instead of tokens to /v1/completions
    #[arg(long, help_heading = "Requests")]
    chat: bool,
    /// Let answers end where the model ends them
    #[arg(long, help_heading = "Requests")]
    stop_at_end: bool,
    #[arg(long, default_value_t = 0.0, value_parser = temperature, help_heading = "Requests")]
    temperature: f64,
    /// Prompts use tokens with numbers below this
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(64..), help_heading = "Requests")]
    vocabulary: u32,
    /// Requests that are sent before and not counted
    #[arg(long, value_name = "COUNT", default_value_t = 4, help_heading = "Requests")]
    warmup: u32,
    /// How long one request may take
    #[arg(long, value_name = "TIME", default_value = "600s", help_heading = "Requests")]
    timeout: Seconds,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| format!("`{text}` is not a number above 0"))
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number from 0 to 2"))
}

/// Requests that are sent where nothing else is said.
const USUAL_REQUESTS: u32 = 100;
/// Requests by which the client's own share is measured.
const OWN_REQUESTS: usize = 200;

/// What was measured at one address.
pub(super) struct Measured {
    url: String,
    summary: LoadSummary,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let plan = arguments.plan()?;
    let targets = arguments.targets()?;
    let own = own_share(&plan)?;
    let mut measured = Vec::new();
    for target in targets {
        let requests = plan.requests.len();
        console.say(&format!("sends {requests} requests to {}", target.url));
        warm_up(&target, &plan, arguments.warmup)?;
        measured.push(Measured { summary: measure(&target, &plan)?, url: target.url });
    }
    if console.is_json() {
        return console.json(&show::json(&plan, &own, &measured));
    }
    match &measured[..] {
        [] => show::own(&own, console),
        [one] => show::one(one, &own, console),
        [one, other, ..] => show::two(one, other, &own, console),
    }
}

/// The first requests of a server load what it needs; they are not counted.
fn warm_up(target: &LoadTarget, plan: &Plan, count: u32) -> Result<(), LoadError> {
    if count == 0 {
        return Ok(());
    }
    let requests: Vec<Planned> = plan.requests.iter().take(count as usize).cloned().collect();
    // Other tokens, so that no prompt is found computed later.
    let seed = plan.seed ^ 0x7761_726d;
    measure(target, &Plan { requests, pace: LoadPace::Closed { users: 1 }, seed, ..plan.clone() }).map(|_| ())
}

/// The same requests at a server that answers at once, one after the other where they have times of their own.
fn own_share(plan: &Plan) -> Result<LoadSummary, LoadError> {
    let server = NullServer::start().map_err(|source| LoadError::Threads { source })?;
    let requests: Vec<Planned> = plan.requests.iter().take(OWN_REQUESTS).cloned().collect();
    let pace = match plan.pace {
        LoadPace::Open { .. } => LoadPace::Closed { users: 1 },
        closed => closed,
    };
    measure(&LoadTarget::parse(&server.url())?, &Plan { requests, pace, ..plan.clone() })
}

impl Arguments {
    fn targets(&self) -> Result<Vec<LoadTarget>, LoadError> {
        let target = |url: &String| {
            Ok(LoadTarget::parse(url)?.with_model(self.model.clone()).with_key(self.api_key.clone()))
        };
        self.servers.iter().map(target).collect()
    }

    fn plan(&self) -> Result<Plan, CliError> {
        let plan = match &self.trace {
            Some(path) => Plan::open(self.trace_requests(path)?, self.speed),
            None if self.rate.is_some() => Plan::open(self.load().planned(), 1.0),
            None => Plan::closed(self.load().planned(), self.concurrency),
        };
        let patience = self.timeout.get();
        if !(patience > 0.0 && patience < 1e6) {
            let message = "`--timeout` must be above 0 and below a million seconds".to_owned();
            return Err(ProgramError::Usage { message }.into());
        }
        Ok(Plan {
            api: if self.chat { Api::Chat } else { Api::Completions },
            tokens: (32, self.vocabulary),
            has_exact_lengths: !self.stop_at_end,
            temperature: self.temperature,
            seed: self.seed,
            patience: Duration::from_secs_f64(patience),
            ..plan
        })
    }

    fn trace_requests(&self, path: &str) -> Result<Vec<Planned>, CliError> {
        let text = files::read_text(path)?;
        let mut requests = read_trace(Source::new(path, &text))?;
        requests.sort_by_key(|planned| planned.at);
        requests.truncate(self.requests.map_or(usize::MAX, |count| count as usize));
        Ok(requests)
    }

    fn load(&self) -> GeneratedLoad {
        let arrivals = match self.rate {
            Some(per_second) => Arrivals::Poisson { per_second },
            None => Arrivals::Closed { users: self.concurrency },
        };
        GeneratedLoad {
            requests: self.requests.unwrap_or(USUAL_REQUESTS),
            arrivals,
            prompt: self.prompt,
            output: self.output,
            shared: self.shared_prefix.map(|percent| SharedPrefix { percent, groups: self.prefix_groups }),
            seed: self.seed,
            ..GeneratedLoad::default()
        }
    }
}

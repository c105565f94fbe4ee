//! `bedplate replay requests`: a trace or generated load over serving replicas.

mod modelled;

use bedplate_batching::{OptionsFlaw, PrefillMode, RouterOptions, RoutingPolicy, SchedulerOptions};
use bedplate_catalog::Catalog;
use bedplate_deploy::{Numbers, ReplayStage};
use bedplate_diag::{Class, Diagnostic, Page, Source};
use bedplate_replay::requests::grammar;
use bedplate_replay::requests::{
    Arrangement, Arrivals, Disaggregated, Fleet, GeneratedLoad, Lengths, LinearEngine, Objectives, Pool,
    Scaling, SharedPrefix, Thinking, Traffic, Transfer, Turns, picoseconds, read_trace, simulate,
};
use bedplate_terminal::{CliError, Console, choice, files};
use bedplate_units::{DollarRate, Seconds};

use self::modelled::Modelled;
use crate::replayed::{page, show};

const POLICIES: [(&str, RoutingPolicy); 3] = [
    ("prefix", RoutingPolicy::Prefix),
    ("least-work", RoutingPolicy::LeastWork),
    ("round-robin", RoutingPolicy::RoundRobin),
];

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate replay requests azure.csv --model llama-3.1-8b --layout tp1.bf16 --cluster p5en.48xlarge:1
  bedplate replay requests --generate users=128 --requests 20000 --replicas 2 \\
      --model llama-3.1-8b --layout tp1.fp8 --cluster p5.48xlarge:1 --slo ttft=600ms,itl=25ms
  bedplate replay requests --generate rate=6,burst=40,every=60s,for=5s --shared-prefix 50 --replicas 1 \\
      --autoscale least=1,most=8,sequences=32,every=5s,cold=60s --model llama-3.1-8b --cluster p5.48xlarge:1
  bedplate replay requests azure.csv --replicas 3 --step-time step=8ms,token=25us,context=20ns
  bedplate replay requests --generate rate=20 --disaggregate 2+4 --transfer latency=2ms,token=1us \\
      --step-time step=8ms,token=25us --report replay.html

Traces are CSV with a header such as TIMESTAMP,ContextTokens,GeneratedTokens,
or JSON lines with timestamp (ms), input_length, output_length and hash_ids.
The time of an engine's step is predicted for --model with its --layout on the
GPUs of --cluster. Experts who measured an engine of their own give --step-time
instead: terms from its log, summed for each step. See docs/replay-requests.md.")]
pub(crate) struct Arguments {
    /// The trace to replay, CSV or JSON lines; `-` reads standard input
    #[arg(required_unless_present = "generate", conflicts_with = "generate")]
    trace: Option<String>,

    /// Generate load instead: `users=N`, `rate=R` per second, or `rate=R,burst=R,every=TIME,for=TIME`
    #[arg(long, value_parser = grammar::arrivals, value_name = "ARRIVALS", help_heading = "Load")]
    generate: Option<Arrivals>,
    /// Requests to generate
    #[arg(long, default_value_t = 10_000, help_heading = "Load", value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Tokens of a prompt: `1024`, or `800..1024` for lengths in between
    #[arg(long, default_value = "1024", value_parser = grammar::lengths, help_heading = "Load")]
    prompt: Lengths,
    /// Tokens to generate: `128`, or `100..200`
    #[arg(long, default_value = "128", value_parser = grammar::lengths, help_heading = "Load")]
    output: Lengths,
    /// Share of each prompt that a group of requests has in common, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Load")]
    shared_prefix: Option<u32>,
    /// How many different prefixes are shared
    #[arg(long, default_value_t = 8, help_heading = "Load")]
    prefix_groups: u32,
    /// Turns of a conversation; each prompt is the conversation so far plus something new
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    turns: u32,
    /// Mean time from an answer to the next turn
    #[arg(long, default_value = "10s", help_heading = "Load")]
    pause: Seconds,
    /// Sequences to generate from each prompt
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    samples: u16,
    /// Percentage of requests with long thinking
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Load")]
    thinking: u32,
    /// Tokens of their thinking
    #[arg(long, default_value = "4000..16000", value_parser = grammar::lengths, help_heading = "Load")]
    thinking_output: Lengths,
    #[arg(long, default_value_t = 0, help_heading = "Load")]
    seed: u64,

    /// Instead of --model, for an engine that you measured: the time of a step as a sum of `step` always, per prompt `token`, per
    /// thousand attended `kilopairs`, per `decode`, per token of `context` that decodes read
    #[arg(long, value_parser = grammar::step_time, value_name = "TERMS", required_unless_present = "model", help_heading = "Engine")]
    step_time: Option<LinearEngine>,
    #[command(flatten, next_help_heading = "Engine")]
    modelled: Modelled,
    #[arg(long, default_value_t = 1, conflicts_with = "disaggregate", help_heading = "Engine")]
    replicas: u32,
    /// Replicas that compute prompts and replicas that decode, such as `2+4`
    #[arg(long, value_parser = grammar::split, value_name = "P+D", help_heading = "Engine")]
    disaggregate: Option<(u32, u32)>,
    /// The time to send KV: `latency`, and per `token`
    #[arg(long, value_parser = grammar::transfer, value_name = "TERMS", requires = "disaggregate", help_heading = "Engine")]
    transfer: Option<Transfer>,
    /// Add and drain replicas: `least`, `most`, target `sequences` per replica, decided `every` interval, `cold` start
    #[arg(long, value_parser = grammar::scaling, value_name = "RULE", conflicts_with = "disaggregate", help_heading = "Engine")]
    autoscale: Option<Scaling>,
    /// KV blocks of a replica; with --model, what its memory holds
    #[arg(long, default_value_t = 16_384, conflicts_with = "model", help_heading = "Engine")]
    kv_blocks: u32,
    /// Tokens of a KV block
    #[arg(long, default_value_t = 16, conflicts_with = "model", help_heading = "Engine")]
    block_tokens: u32,
    /// Most tokens in one step
    #[arg(long, default_value_t = 8192, conflicts_with = "model", help_heading = "Engine")]
    token_budget: u32,
    /// Most tokens of one prompt in one step
    #[arg(long, default_value_t = 8192, help_heading = "Engine")]
    chunk: u32,
    /// Most sequences that run at once on a replica
    #[arg(long, alias = "seats", default_value_t = 256, help_heading = "Engine")]
    max_seqs: u32,
    /// Compute prompts in separate steps, while decodes wait
    #[arg(long, conflicts_with = "model", help_heading = "Engine")]
    separate_prefill: bool,
    /// Drop prefixes when their sequence ends
    #[arg(long, help_heading = "Engine")]
    no_prefix_cache: bool,
    #[arg(long, value_parser = choice(&POLICIES), default_value = "prefix", help_heading = "Engine")]
    router: RoutingPolicy,

    /// Objectives of a request: `ttft`, `itl`, `e2e`
    #[arg(long, value_parser = grammar::objectives, value_name = "LIMITS")]
    slo: Option<Objectives>,
    /// The price of a replica, such as `$12/h`
    #[arg(long)]
    price: Option<DollarRate>,
    /// Write an HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("these settings of a replica are invalid: {flaw}")]
struct ImpossibleSettings {
    flaw: OptionsFlaw,
}

pub(super) static IMPOSSIBLE_SETTINGS: Page = Page {
    code: "replay/impossible-settings",
    class: Class::User,
    meaning: "The limits of a replica contradict each other: something is zero, or a step's token budget cannot give each running sequence one token.",
    remedy: "raise `--token-budget` to at least `--max-seqs`, and avoid zeros",
};

impl Diagnostic for ImpossibleSettings {
    fn page(&self) -> &'static Page {
        &IMPOSSIBLE_SETTINGS
    }
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let traffic = arguments.traffic()?;
    match (&arguments.modelled.model, &arguments.step_time) {
        (Some(name), _) => {
            let replicas = arguments.modelled.load(name, catalog)?;
            let need = replicas.need(&traffic, arguments.chunk, arguments.seed);
            let plan = replicas.plan(&need, arguments.numbers())?;
            let stage = ReplayStage::new(&need, replicas.supply(), plan)?;
            play(arguments, traffic, &arguments.settled(stage.fleet()), console)
        }
        (None, Some(engine)) => play(arguments, traffic, &arguments.fleet(engine), console),
        (None, None) => unreachable!("clap asks for a model or a step time"),
    }
}

fn play(
    arguments: &Arguments,
    traffic: Traffic,
    fleet: &Fleet<'_>,
    console: &mut Console,
) -> Result<(), CliError> {
    let outcome = simulate(traffic, fleet).map_err(|flaw| ImpossibleSettings { flaw })?;
    if let Some(path) = &arguments.report {
        files::write_text(path, &page::page(&outcome, &fleet.objectives).html())?;
        console.say(&format!("wrote {path}"));
    }
    if console.is_json() {
        console.json(&show::json(&outcome, &fleet.objectives))?;
    } else {
        show::show(&outcome, &fleet.objectives, console)?;
    }
    if outcome.finished > 0 { Ok(()) } else { Err(CliError::Refused) }
}

impl Arguments {
    fn traffic(&self) -> Result<Traffic, CliError> {
        let Some(arrivals) = self.generate else {
            let path = self.trace.as_deref().expect("clap asks for a trace or for load");
            let text = files::read_text(path)?;
            return Ok(Traffic::Trace(read_trace(Source::new(path, &text))?));
        };
        Ok(Traffic::Generated(GeneratedLoad {
            requests: self.requests,
            arrivals,
            prompt: self.prompt,
            output: self.output,
            shared: self.shared_prefix.map(|percent| SharedPrefix { percent, groups: self.prefix_groups }),
            turns: (self.turns > 1)
                .then(|| Turns { turns: self.turns, pause: picoseconds(self.pause.get()) }),
            thinking: (self.thinking > 0)
                .then_some(Thinking { percent: self.thinking, output: self.thinking_output }),
            samples: self.samples,
            seed: self.seed,
            ..GeneratedLoad::default()
        }))
    }

    fn numbers(&self) -> Numbers {
        let Self { replicas, disaggregate, max_seqs, chunk, .. } = *self;
        Numbers { replicas, split: disaggregate, max_seqs, chunk }
    }

    /// A predicted fleet with the other options applied.
    fn settled<'a>(&self, mut fleet: Fleet<'a>) -> Fleet<'a> {
        let settle = |pool: &mut Pool<'a>| {
            pool.router = self.router();
            pool.scaling = self.autoscale;
            pool.scheduler.keeps_prefixes = !self.no_prefix_cache;
            if let Some(price) = self.price {
                pool.dollars_per_hour = price.hourly().get();
            }
        };
        match &mut fleet.arrangement {
            Arrangement::Aggregated(pool) => settle(pool),
            Arrangement::Disaggregated(split) => {
                settle(&mut split.prefill);
                settle(&mut split.decode);
                split.transfer = self.transfer.unwrap_or(split.transfer);
            }
        }
        fleet.objectives = self.slo.unwrap_or_default();
        fleet
    }

    fn router(&self) -> RouterOptions {
        RouterOptions { policy: self.router, seed: self.seed, ..RouterOptions::default() }
    }

    fn fleet<'a>(&self, engine: &'a LinearEngine) -> Fleet<'a> {
        let pool = |replicas: u32| Pool {
            scheduler: self.scheduler(),
            router: self.router(),
            dollars_per_hour: self.price.map_or(0.0, |price| price.hourly().get()),
            scaling: self.autoscale,
            ..Pool::new(replicas, engine)
        };
        let mut fleet = Fleet::aggregated(pool(self.replicas));
        if let Some((prefill, decode)) = self.disaggregate {
            fleet.arrangement = Arrangement::Disaggregated(Box::new(Disaggregated {
                prefill: pool(prefill),
                decode: pool(decode),
                transfer: self.transfer.unwrap_or_default(),
            }));
        }
        fleet.objectives = self.slo.unwrap_or_default();
        fleet
    }

    fn scheduler(&self) -> SchedulerOptions {
        SchedulerOptions {
            block_tokens: self.block_tokens,
            blocks: self.kv_blocks,
            token_budget: self.token_budget,
            chunk_tokens: self.chunk,
            max_seqs: self.max_seqs,
            prefill: if self.separate_prefill { PrefillMode::Separate } else { PrefillMode::Mixed },
            keeps_prefixes: !self.no_prefix_cache,
            watermark_blocks: self.kv_blocks / 100,
            ..SchedulerOptions::default()
        }
    }
}

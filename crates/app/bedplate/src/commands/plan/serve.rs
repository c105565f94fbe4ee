//! `bedplate plan serve`: the cheapest deployment that meets the objectives.

mod load;
mod page;
mod show;

use std::collections::BTreeSet;

use bedplate_calibrate::serving::ServingErrors;
use bedplate_catalog::Catalog;
use bedplate_deploy::launch::kubernetes::Deployment;
use bedplate_deploy::launch::{Software, launch, pools};
use bedplate_deploy::test_time::{Effort, EffortPrice, test_time};
use bedplate_deploy::{
    DeployAnswer, DeployOptions, HeldPlan, Need, OfferedLoad, Outlook, Pattern, Plan, PlanExplanation,
    Pooling, Supply, explain, outlook, search, unmeasured,
};
use bedplate_perf::serving::{Engine, ServedModel, ServingConstants, Site, Speculation, WeightFormat};
use bedplate_replay::requests::Objectives;
use bedplate_terminal::{CliError, Console, choice, files};
use bedplate_transformer::{Precision, published_as};

use super::constants::Choice;
use super::serving::load_site;
use crate::served::{ENGINES, KV, Payment, WEIGHTS, load_model};
use bedplate_replay::requests::grammar;

pub(super) use self::load::{NO_ENCODER, NO_RATE};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate plan serve --model llama-3.3-70b --cluster p5en.48xlarge:4 --isl 4000 --osl 500 \\
      --rate 20/s --slo ttft=600ms,itl=25ms
  bedplate plan serve --model llama-3.1-8b --isl 1000 --osl 200 --rate 50/s --slo itl=20ms
  bedplate plan serve --model deepseek-v3 --cluster p5en.48xlarge:2 --isl 2000 --osl 500 \\
      --rate 4/s --slo ttft=2s,itl=60ms --precision fp8 --explain tp16
  bedplate plan serve --model llama-3.3-70b --cluster p5en.48xlarge:2 --isl 4000 --osl 500 \\
      --rate 5/s --slo itl=30ms --launch vllm --report serve.html
  bedplate plan serve --model llama-3.1-8b --cluster p5en.48xlarge:1 --trace requests.jsonl \\
      --slo ttft=500ms,itl=20ms
  bedplate plan serve --model llama-3.3-70b --prompt-on p5.48xlarge:2 --decode-on p5en.48xlarge:2 \\
      --isl 4000 --osl 500 --rate 5/s --slo ttft=1s,itl=30ms --launch dynamo

Without --cluster every priced machine of the catalog is tried whose chips have measured
serving rows; --any-chip tries the others too. Quantised weights may cost quality;
--precision bf16 rules them out. See docs/plan-serve.md.")]
pub(crate) struct Arguments {
    /// A built-in name, a config.json or its folder
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// INSTANCE:COUNT or a cluster file; may be repeated, to choose between them
    #[arg(long, value_name = "CLUSTER")]
    cluster: Vec<String>,
    /// GPUs for prompts, if others decode; written as for --cluster
    #[arg(long, value_name = "CLUSTER", requires = "decode_on", conflicts_with_all = ["cluster", "pools"])]
    prompt_on: Vec<String>,
    /// GPUs that decode what --prompt-on computed; a network connects the two
    #[arg(long, value_name = "CLUSTER", requires = "prompt_on")]
    decode_on: Vec<String>,
    #[command(flatten)]
    asked: load::Asked,
    /// Objectives of a request: `ttft`, `itl`, `e2e`
    #[arg(long, value_parser = grammar::objectives, value_name = "LIMITS")]
    slo: Option<Objectives>,
    /// Percentage of requests that must meet them
    #[arg(long, value_name = "PERCENT", default_value_t = 95.0)]
    share: f64,

    /// Formats of weights to choose from [default: bf16,fp8,fp4, where the chip has them]
    #[arg(long, value_parser = choice(&WEIGHTS), value_delimiter = ',', help_heading = "Choices")]
    precision: Vec<WeightFormat>,
    /// KV formats to choose from [default: bf16,fp8]
    #[arg(long, value_parser = choice(&KV), value_delimiter = ',', help_heading = "Choices")]
    kv: Vec<Precision>,
    /// The engine whose scheduling and overheads are predicted
    #[arg(long, value_parser = choice(&ENGINES), default_value = "vllm", help_heading = "Choices")]
    engine: Engine,
    /// Prompt tokens of one step to choose from
    #[arg(long, value_delimiter = ',', default_values_t = [2048, 8192, 16_384], help_heading = "Choices")]
    chunk: Vec<u32>,
    /// One pool of replicas, or pools for prompts and decodes
    #[arg(long, value_parser = choice(&Pooling::ALL), default_value = "any", help_heading = "Choices")]
    pools: Pooling,
    /// Tokens drafted in each step by a multi-token predictor
    #[arg(long, requires = "tokens_per_step", help_heading = "Choices")]
    drafts: Option<u32>,
    /// Tokens that a step yields with those drafts
    #[arg(long, requires = "drafts", help_heading = "Choices")]
    tokens_per_step: Option<f64>,
    /// Most GPUs of one machine type when no cluster is given
    #[arg(long, default_value_t = 64, help_heading = "Choices")]
    max_gpus: u32,
    /// Also choose machines whose chips have no measured serving
    #[arg(long, help_heading = "Choices")]
    any_chip: bool,
    #[command(flatten, next_help_heading = "Choices")]
    payment: Payment,

    /// Explain why not this one: `tp8`, `tp4.fp8.kv-fp8`, `tp2+tp4` for two pools
    #[arg(long, value_name = "DEPLOYMENT")]
    explain: Option<String>,
    /// Print the commands that start it
    #[arg(long, value_parser = choice(&Software::ALL), value_name = "SOFTWARE")]
    launch: Option<Software>,
    /// With --launch: manifests of Kubernetes instead, whose objects have this name
    #[arg(long, requires = "launch", value_name = "NAME", value_parser = label)]
    kubernetes: Option<String>,
    /// With --kubernetes: the image of the engine's containers [default: the engine's newest]
    #[arg(long, requires = "kubernetes", value_parser = image)]
    image: Option<String>,
    /// Price best-of-n and long thinking on the deployment found
    #[arg(long)]
    test_time: bool,
    /// How many points of the front to list
    #[arg(long, default_value_t = 12)]
    top: usize,
    /// Write an HTML page with plots: the front, latencies, load
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Adjustments of your own deployments by `plan calibrate --kind serving`
    #[arg(long, value_name = "FILE")]
    site: Option<String>,
    #[command(flatten)]
    constants: Choice,
}

pub(super) fn run(arguments: &Arguments, catalog: &Catalog, console: &mut Console) -> Result<(), CliError> {
    let loaded = Loaded::load(arguments, catalog)?;
    let need = loaded.need(arguments);
    let pattern: Option<Pattern> = arguments.explain.as_deref().map(str::parse).transpose()?;
    if !loaded.left_out.is_empty() {
        console.say(&format!(
            "left out, because no serving was measured on them: {}; --any-chip tries them too",
            loaded.left_out.join(", ")
        ));
    }
    let answer = search(&need, &loaded.supplies)?;
    let found = Found::new(arguments, &need, &loaded, answer, pattern.as_ref());
    if let Some(path) = &arguments.report {
        files::write_text(path, &page::page(&found).html())?;
        console.say(&format!("wrote {path}"));
    }
    match &found.launch {
        _ if console.is_json() => console.json(&show::json(&found)),
        // Only what is to be run or applied is the output; the report stands beside it.
        Some(launch) => {
            show::show(&found, arguments.top, &mut console.aside())?;
            console.line(launch)
        }
        None => show::show(&found, arguments.top, console),
    }
}

/// The loaded inputs of the question.
struct Loaded {
    model: ServedModel,
    expected: load::Expected,
    supplies: Vec<Supply>,
    alternatives: Vec<Supply>,
    /// Chips of the catalog that are not tried because no serving was measured on them.
    left_out: Vec<String>,
    constants: ServingConstants,
    errors: ServingErrors,
    site: Option<Site>,
}

impl Arguments {
    /// The GPUs that were given: clusters, or every pair of GPUs for prompts and GPUs for decodes.
    fn given(&self, catalog: &Catalog) -> Result<Vec<Supply>, CliError> {
        let mut supplies = self.payment.supplies(&self.cluster, catalog)?;
        let decodes = self.payment.supplies(&self.decode_on, catalog)?;
        for prompts in self.payment.supplies(&self.prompt_on, catalog)? {
            let pair = |decodes: &Supply| Supply::apart(prompts.clone(), decodes.clone());
            supplies.extend(decodes.iter().map(pair));
        }
        Ok(supplies)
    }
}

impl Loaded {
    fn load(arguments: &Arguments, catalog: &Catalog) -> Result<Self, CliError> {
        let errors = ServingErrors::builtin();
        let all = arguments.payment.of_catalog(arguments.max_gpus, catalog)?;
        let may_be_chosen = |supply: &Supply| arguments.any_chip || errors.has_measured(&supply.accelerator);
        let (known, unknown): (Vec<Supply>, Vec<Supply>) = all.into_iter().partition(may_be_chosen);
        let names: BTreeSet<String> = unknown.into_iter().map(|supply| supply.accelerator).collect();
        let has_clusters = !arguments.cluster.is_empty() || !arguments.prompt_on.is_empty();
        let model = load_model(&arguments.model)?;
        Ok(Self {
            expected: arguments.asked.load(&model)?,
            model,
            supplies: match has_clusters {
                true => arguments.given(catalog)?,
                false => known.clone(),
            },
            alternatives: known,
            left_out: if has_clusters { Vec::new() } else { names.into_iter().collect() },
            constants: arguments.constants.load_serving()?,
            errors,
            site: arguments.site.as_deref().map(load_site).transpose()?,
        })
    }

    fn need(&self, arguments: &Arguments) -> Need<'_> {
        let usual = DeployOptions::default();
        let or = |given: &Vec<_>, usual: Vec<_>| if given.is_empty() { usual } else { given.clone() };
        let speculation = arguments.drafts.zip(arguments.tokens_per_step);
        Need {
            model: &self.model,
            load: self.expected.load,
            traced: self.expected.traced.as_ref(),
            objectives: arguments.slo.unwrap_or_default(),
            constants: &self.constants,
            site: self.site.as_ref(),
            errors: Some(&self.errors),
            alternatives: &self.alternatives,
            options: DeployOptions {
                engine: arguments.engine,
                weights: or(&arguments.precision, usual.weights.clone()),
                kv: if arguments.kv.is_empty() { usual.kv.clone() } else { arguments.kv.clone() },
                chunks: arguments.chunk.clone(),
                pooling: arguments.pools,
                speculation: speculation
                    .map(|(drafts, tokens_per_step)| Speculation { drafts, tokens_per_step }),
                adapters: self.expected.adapters,
                images: self.expected.pictures,
                share: arguments.share / 100.0,
                seed: arguments.seed,
                near: self.errors.near(),
                ..usual
            },
        }
    }
}

/// Commands, or manifests with them.
fn how_to_start(
    arguments: &Arguments,
    need: &Need<'_>,
    supply: &Supply,
    plan: &Plan,
    software: Software,
) -> String {
    let model = published_as(&arguments.model).unwrap_or(&arguments.model);
    let Some(name) = &arguments.kubernetes else {
        return launch(need, supply, plan, model, software);
    };
    let deployment = Deployment {
        name,
        image: arguments.image.as_deref(),
        software,
        resource: "nvidia.com/gpu",
        gpus: supply.kinds().map(Supply::gpus).sum(),
    };
    let pools = pools(need, supply, plan, model, software);
    deployment.manifests(&pools, plan.decoders().max_seqs).trim_end().to_owned()
}

/// A name that objects of Kubernetes may have, with room for what is appended to it.
fn label(text: &str) -> Result<String, String> {
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
    match begins && text.len() <= 50 && bedplate_document::kubernetes::is_dns_label(text) {
        true => Ok(text.to_owned()),
        false => {
            Err("a name has lower-case letters, digits and hyphens, begins with a letter, and has at most 50"
                .into())
        }
    }
}

/// An image's name: one word that needs no quotes.
fn image(text: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"./:@_-".contains(&byte);
    let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    match begins && text.bytes().all(is_part) {
        true => Ok(text.to_owned()),
        false => Err("an image is named like `registry/name:tag`".into()),
    }
}

/// The answer together with the question.
struct Found<'a> {
    need: &'a Need<'a>,
    supplies: &'a [Supply],
    /// Chips that were not tried because no serving was measured on them.
    left_out: &'a [String],
    errors: &'a ServingErrors,
    answer: DeployAnswer,
    /// What to expect of the best plan; unknown for chips of which no family was measured.
    outlook: Option<Outlook>,
    explanation: Option<PlanExplanation>,
    launch: Option<String>,
    efforts: Vec<(Effort, Option<EffortPrice>)>,
}

impl<'a> Found<'a> {
    fn new(
        arguments: &Arguments,
        need: &'a Need<'a>,
        loaded: &'a Loaded,
        answer: DeployAnswer,
        pattern: Option<&Pattern>,
    ) -> Self {
        let supplies = &loaded.supplies;
        let (supply, plan) = (&supplies[answer.best.supply], &answer.best.plan);
        let wants_efforts = arguments.test_time || arguments.report.is_some();
        let efforts: &[Effort] = if wants_efforts { &Effort::USUAL } else { &[] };
        Self {
            explanation: pattern.map(|pattern| explain(need, supplies, &answer, pattern)),
            launch: arguments.launch.map(|software| how_to_start(arguments, need, supply, plan, software)),
            efforts: test_time(need, supply, plan, efforts),
            outlook: outlook(need, supply, plan, &answer.best.shown, &loaded.errors),
            need,
            supplies,
            left_out: &loaded.left_out,
            errors: &loaded.errors,
            answer,
        }
    }

    fn outlook_of(&self, held: &HeldPlan) -> Option<Outlook> {
        outlook(self.need, &self.supplies[held.supply], &held.plan, &held.shown, self.errors)
    }

    fn doubts(&self) -> Option<String> {
        unmeasured(self.need, self.supply(), self.errors, self.outlook.is_some())
    }

    fn supply(&self) -> &Supply {
        &self.supplies[self.answer.best.supply]
    }

    fn title(&self) -> String {
        let OfferedLoad { per_second, shared, .. } = self.need.load;
        let (input, output) = self.need.load.lengths();
        if self.need.traced.is_some() {
            return format!(
                "{} on {}: requests of a trace at {per_second:.3}/s",
                self.need.model.transformer.name,
                self.supply().label()
            );
        }
        let shared = shared.map_or(String::new(), |shared| {
            format!(", {}% of each from one of {} prefixes", shared.percent, shared.groups)
        });
        format!(
            "{} on {}: prompts of {input} tokens{shared}, answers of {output}, {per_second} requests/s",
            self.need.model.transformer.name,
            self.supply().label()
        )
    }
}

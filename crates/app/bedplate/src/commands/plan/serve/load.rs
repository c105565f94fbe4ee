//! What is to be served: lengths and a rate by flags, or the requests of a trace.

use bedplate_deploy::{OfferedLoad, Pictures};
use bedplate_diag::{Class, Diagnostic, Page, Place, Source};
use bedplate_perf::serving::{LoadedAdapters, ServedModel};
use bedplate_replay::requests::{Lengths, SharedPrefix, TracedLoad, read_trace};
use bedplate_terminal::{CliError, files};
use bedplate_units::grouped;
use serde_json::{Value, json};

use bedplate_replay::requests::grammar;

#[derive(clap::Args)]
pub(super) struct Asked {
    /// Tokens of a prompt: `4000`, or `500..8000` for lengths spread evenly
    #[arg(long, value_name = "TOKENS", value_parser = grammar::lengths, required_unless_present = "trace")]
    isl: Option<Lengths>,
    /// Tokens of an answer, likewise
    #[arg(long, value_name = "TOKENS", value_parser = grammar::lengths, required_unless_present = "trace")]
    osl: Option<Lengths>,
    /// Requests to take lengths, shared prefixes and the rate from, as for `replay requests`; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["isl", "osl", "shared_prefix", "prefix_groups"])]
    trace: Option<String>,
    /// Share of each prompt's text that a group of requests has in common, in percent
    #[arg(long, visible_alias = "prefix", value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    shared_prefix: Option<u32>,
    /// How many different prefixes are shared
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), requires = "shared_prefix")]
    prefix_groups: u32,
    /// Requests per second [default: those of the trace]
    #[arg(long, value_parser = grammar::rate, required_unless_present = "trace")]
    rate: Option<f64>,
    /// LoRA adapters that requests choose from, all of them loaded
    #[arg(long, value_name = "N", requires = "rank", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    adapters: Option<u32>,
    /// The rank of the adapters
    #[arg(long, requires = "adapters", value_parser = clap::value_parser!(u32).range(1..=i64::from(LoadedAdapters::LARGEST_RANK)))]
    rank: Option<u32>,
    /// Images in each prompt, whose tokens come on top of --isl; the model must have a vision encoder
    #[arg(long, value_name = "N", conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(1..=1000))]
    images_per_request: Option<u32>,
    /// Pixels of an image: `1280x720`, or `1024` for a square
    #[arg(long, value_name = "PIXELS", default_value = "1024", value_parser = pixels, requires = "images_per_request")]
    image_size: (u32, u32),
}

fn pixels(text: &str) -> Result<(u32, u32), String> {
    const MOST: u32 = 1 << 15;
    let (width, height) = text.split_once('x').unwrap_or((text, text));
    let side = |text: &str| text.parse::<u32>().ok().filter(|side| (1..=MOST).contains(side));
    side(width)
        .zip(side(height))
        .ok_or_else(|| format!("sides are whole numbers from 1 to {MOST}, as in `1280x720`"))
}

/// The load as it is planned for.
pub(super) struct Expected {
    pub(super) load: OfferedLoad,
    pub(super) traced: Option<TracedLoad>,
    pub(super) adapters: Option<LoadedAdapters>,
    pub(super) pictures: Option<Pictures>,
}

#[derive(Debug, thiserror::Error)]
#[error("the trace says nothing about a rate: {}", reason(*.requests))]
struct NoRate {
    requests: usize,
    place: Place,
}

fn reason(requests: usize) -> String {
    match requests {
        1 => "it has one request".to_owned(),
        requests => format!("its {requests} requests came within a second"),
    }
}

pub(in crate::commands::plan) static NO_RATE: Page = Page {
    code: "plan/no-rate",
    class: Class::User,
    meaning: "The rate of a trace is the number of its requests over the time from the first to the last. Here that time is less than a second, which says nothing about the rate of a longer time.",
    remedy: "give the rate to plan for, as in `--rate 20/s`",
};

impl Diagnostic for NoRate {
    fn page(&self) -> &'static Page {
        &NO_RATE
    }

    fn place(&self) -> Option<&Place> {
        Some(&self.place)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`{model}` has no vision encoder that is known, so its prompts cannot have images")]
struct NoEncoder {
    model: String,
}

pub(in crate::commands::plan) static NO_ENCODER: Page = Page {
    code: "plan/no-vision-encoder",
    class: Class::User,
    meaning: "Images are priced by the model's vision encoder, which is read from the `vision_config` of its config.json. The program knows the encoders of Qwen2-VL, Qwen2.5-VL, Gemma 3 and LLaVA. Built-in names stand for language models without one.",
    remedy: "give the config.json of such a model as `--model`, or plan without `--images-per-request`",
};

impl Diagnostic for NoEncoder {
    fn page(&self) -> &'static Page {
        &NO_ENCODER
    }
}

impl Asked {
    pub(super) fn load(&self, model: &ServedModel) -> Result<Expected, CliError> {
        let adapters = self.adapters.zip(self.rank).map(|(loaded, rank)| LoadedAdapters { loaded, rank });
        let pictures = self.pictures(model)?;
        let Some(path) = &self.trace else {
            let load = self.by_flags(pictures.map_or(0, |pictures| pictures.tokens()));
            return Ok(Expected { load, traced: None, adapters, pictures });
        };
        let text = files::read_text(path)?;
        let source = Source::new(path, &text);
        let traced = TracedLoad::new(read_trace(source)?).expect("a trace has requests");
        let no_rate = || NoRate { requests: traced.len(), place: source.whole() };
        let per_second = self.rate.or(traced.per_second).ok_or_else(no_rate)?;
        let load = OfferedLoad::recorded(&traced, per_second);
        Ok(Expected { load, traced: Some(traced), adapters, pictures })
    }

    /// The load by lengths and a rate; images come on top of the prompts.
    fn by_flags(&self, image_tokens: u64) -> OfferedLoad {
        let asked = self.isl.zip(self.osl).zip(self.rate);
        let ((text, output), rate) = asked.expect("clap asks for lengths and a rate, or for a trace");
        let shared = self.shared_prefix;
        let shared = shared.map(|percent| SharedPrefix { percent, groups: self.prefix_groups });
        OfferedLoad::asked(text, output, rate, image_tokens, shared, self.adapters.unwrap_or(1))
    }

    fn pictures(&self, model: &ServedModel) -> Result<Option<Pictures>, CliError> {
        let Some(per_request) = self.images_per_request else { return Ok(None) };
        let no_encoder = || NoEncoder { model: model.transformer.name.clone() };
        let vision = model.vision.as_ref().ok_or_else(no_encoder)?;
        let (width, height) = self.image_size;
        Ok(Some(Pictures { per_request, image: vision.image(width, height) }))
    }
}

/// What comes with every prompt, in words.
pub(super) fn pictured(pictures: &Pictures) -> String {
    let Pictures { per_request, image } = pictures;
    let plural = if *per_request == 1 { "" } else { "s" };
    format!(
        "{per_request} image{plural} in each prompt, of {} patches and {} tokens each",
        grouped(image.patches),
        grouped(image.tokens)
    )
}

/// What was taken from a trace, in a sentence.
pub(super) fn taken(traced: &TracedLoad, load: &OfferedLoad) -> String {
    let TracedLoad { prompt, output, .. } = traced;
    let shared = match traced.shared {
        Some(shared) => format!("{:.0}% of prompt tokens began earlier prompts too", shared.share * 100.0),
        None => "nothing is known of shared prefixes".to_owned(),
    };
    let rate = match (traced.per_second, traced.busiest_minute) {
        (None, _) => String::new(),
        (Some(mean), None) => format!("; {mean:.3} requests/s"),
        (Some(mean), Some(most)) => {
            format!("; {mean:.3} requests/s, {most:.3} in the busiest minute")
        }
    };
    let other = match traced.per_second {
        Some(mean) if mean == load.per_second => "",
        _ => ", planned at the rate asked for",
    };
    format!(
        "{} requests: prompts of {} tokens in the median, {} at p90, {} at most; answers of {}, {} and {}; {shared}{rate}{other}",
        grouped(traced.len() as u64),
        prompt.median,
        prompt.p90,
        prompt.longest,
        output.median,
        output.p90,
        output.longest,
    )
}

pub(super) fn json(traced: &TracedLoad) -> Value {
    let tokens = |tokens: &bedplate_replay::requests::TokenLengths| {
        json!({
            "mean": tokens.mean,
            "median": tokens.median,
            "p90": tokens.p90,
            "longest": tokens.longest,
        })
    };
    json!({
        "requests": traced.len(),
        "prompt_tokens": tokens(&traced.prompt),
        "output_tokens": tokens(&traced.output),
        "longest_request_tokens": traced.longest_request,
        "shared_prompt_share": traced.shared.map(|shared| shared.share),
        "shared_prompt_tokens": traced.shared.map(|shared| shared.tokens),
        "requests_per_s": traced.per_second,
        "requests_per_s_busiest_minute": traced.busiest_minute,
    })
}

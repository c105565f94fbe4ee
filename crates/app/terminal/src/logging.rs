//! Structured logging: events of long-running parts, as text for people or as JSON for machines, on standard error.
//!
//! Libraries say what happens by `tracing`, with fields for the job, run, rank, node or request it concerns; never a token, never an
//! environment. Here it is decided what is shown: `--log` or `BEDPLATE_LOG`, a level or levels by crate
//! (`info,bedplate_gateway=debug`). What is not shown costs one comparison.

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Span, Subscriber, info_span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::present::moment;
use crate::{CliError, ProgramError};

/// What is logged, and how.
#[derive(Debug, Args)]
pub struct LogArguments {
    /// Log on standard error: off, error, warn, info, debug or trace, for all crates or by crate, as in `info,bedplate_gateway=debug` [default: info]
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "LEVELS",
        env = "BEDPLATE_LOG",
        hide_env = true
    )]
    log: Option<String>,

    /// Log as text, or as JSON with one object per line
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "FORMAT",
        env = "BEDPLATE_LOG_FORMAT",
        hide_env = true,
        default_value = "text"
    )]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogArguments {
    /// Begins to log. Called once by each program, before its command runs.
    pub fn start(&self) -> Result<(), CliError> {
        let levels = levels(self.log.as_deref())?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let registry = tracing_subscriber::registry().with(levels);
        let started = match self.log_format {
            LogFormat::Text => registry.with(lines.event_format(Text)).try_init(),
            LogFormat::Json => registry.with(lines.json().flatten_event(true).with_timer(Clock)).try_init(),
        };
        started.map_err(|_| usage("logging has begun already".to_owned()))
    }
}

/// Around what a rank of a job does, so that all it logs has the job, run, node and rank of its environment.
pub fn rank_span() -> Span {
    let find = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (job, run) = (find("BEDPLATE_JOB"), find("BEDPLATE_RUN"));
    info_span!("rank", job, run, node = find("BEDPLATE_NODE"), rank = find("RANK"))
}

/// Crates that log less than others unless they are asked to: what a person must know of them, their commands say in their own words.
const QUIET: [(&str, LevelFilter); 2] =
    [("bedplate_train", LevelFilter::OFF), ("bedplate_serve", LevelFilter::WARN)];

/// Levels by crate. Other people's crates are quiet unless they are named.
fn levels(text: Option<&str>) -> Result<Targets, CliError> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
        let ours = Targets::new().with_target("bedplate", LevelFilter::INFO).with_default(LevelFilter::WARN);
        return Ok(QUIET.into_iter().fold(ours, |ours, (quiet, level)| ours.with_target(quiet, level)));
    };
    if let Ok(level) = text.parse::<LevelFilter>() {
        return Ok(Targets::new().with_target("bedplate", level).with_default(level.min(LevelFilter::WARN)));
    }
    let targets = text.split(',').all(|piece| is_level(piece.trim())).then(|| text.parse::<Targets>().ok());
    targets.flatten().ok_or_else(|| {
        usage(format!("`{text}` does not say what to log; try `debug`, or levels by crate as in `info,bedplate_gateway=debug`"))
    })
}

/// A level, or that of a crate. A word that is neither would be taken for a crate that there is not, and nothing logged.
fn is_level(piece: &str) -> bool {
    let (target, level) = piece.split_once('=').unwrap_or(("all", piece));
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let is_level = !level.is_empty() && level.parse::<LevelFilter>().is_ok();
    is_level && !target.is_empty() && target.chars().all(is_name)
}

fn usage(message: String) -> CliError {
    ProgramError::Usage { message }.into()
}

/// Times in UTC, to the second.
struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        writer.write_str(&moment(bedplate_host::clock::unix_time().as_millis() as u64))
    }
}

/// `2026-11-15 12:40:07 warn node n3 is silent job=7`: what happened first, its fields behind it and those of its spans.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        Clock.format_time(&mut writer)?;
        write!(writer, " {} ", event.metadata().level().as_str().to_ascii_lowercase())?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty());
            if let Some(fields) = fields {
                write!(writer, " {fields}")?;
            }
        }
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_are_read_for_all_or_by_crate_and_others_are_refused_with_an_example() {
        let ours = |text: Option<&str>, level| {
            levels(text).unwrap().would_enable("bedplate_gateway::router", &level)
        };
        let theirs = |text: Option<&str>, level| levels(text).unwrap().would_enable("hyper::proto", &level);
        assert!(ours(None, Level::INFO) && !ours(None, Level::DEBUG) && !theirs(None, Level::INFO));
        assert!(ours(Some("trace"), Level::TRACE) && !theirs(Some("trace"), Level::INFO));
        assert!(!ours(Some("off"), Level::ERROR) && !theirs(Some("off"), Level::ERROR));
        let by_crate = Some("error,bedplate_gateway=debug");
        assert!(ours(by_crate, Level::DEBUG) && !theirs(by_crate, Level::WARN));
        let train = |text| levels(text).unwrap().would_enable("bedplate_train::run::events", &Level::ERROR);
        assert!(!train(None) && train(Some("error")));
        for wrong in ["=loud=", "warning", "[[[", "info,bedplate_gateway", "bedplate_gateway=loud", "info,"] {
            let Err(CliError::Failed(refused)) = levels(Some(wrong)) else { panic!("{wrong} is taken") };
            assert!(refused.to_string().contains("info,bedplate_gateway=debug"), "{refused}");
        }
    }
}

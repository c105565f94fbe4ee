//! The file of a host's measured rates, moved to what runs reached on it.

use bedplate_catalog::{Accelerator, Catalog, CollectiveTimes, FormatRates};
use bedplate_diag::Source;

use super::OwnRunsError;
use crate::{HostCase, HostFit, fit_host};

/// A fit, and the host's file with it.
#[derive(Debug, Clone)]
pub struct MovedHost {
    pub fit: HostFit,
    pub text: String,
}

/// Fits the rates of the accelerator `name`, which the file describes, to runs on it.
pub fn move_host(file: Source<'_>, name: &str, runs: &[HostCase]) -> Result<MovedHost, OwnRunsError> {
    let catalog = Catalog::with_overlays(&[file])?;
    let host = catalog.accelerator(name).ok().filter(|host| host.measured.is_some());
    let host = host.ok_or_else(|| OwnRunsError::NoHost { path: file.name.to_owned() })?;
    let fit = fit_host(runs, host);
    if fit.factors.is_empty() {
        let run = runs.first().map_or(String::new(), |run| run.id.clone());
        return Err(OwnRunsError::NothingPriced { run });
    }
    let text = rewritten(file.text, host, &fit.host, runs.len());
    Ok(MovedHost { fit, text })
}

/// The host's file with the moved rates in place of the old ones; everything else stays as it is.
fn rewritten(text: &str, before: &Accelerator, host: &Accelerator, runs: usize) -> String {
    let mut section = String::new();
    let mut collectives = host.collectives.iter().zip(&before.collectives);
    let mut collective = None;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            section = line.trim().to_owned();
            if section == "[[accelerator.collective]]" {
                collective = collectives.next();
            }
        }
        let of =
            |host: &Accelerator, times: Option<&CollectiveTimes>| moved_line(&section, line, host, times);
        let moved = of(host, collective.map(|(moved, _)| moved));
        // A rate that stays keeps its line as it was written.
        let is_same = moved == of(before, collective.map(|(_, before)| before));
        lines.push(moved.filter(|_| !is_same).unwrap_or_else(|| line.to_owned()));
    }
    let note =
        format!("# Rates moved to what {runs} of `bedplate train` reached, by `bedplate plan calibrate`.");
    if !lines.iter().any(|line| line.starts_with("# Rates moved to what")) {
        lines.insert(0, note);
    } else if let Some(old) = lines.iter_mut().find(|line| line.starts_with("# Rates moved to what")) {
        *old = note;
    }
    lines.join("\n") + "\n"
}

fn moved_line(
    section: &str,
    line: &str,
    host: &Accelerator,
    collective: Option<&CollectiveTimes>,
) -> Option<String> {
    let key = line.split_once('=')?.0.trim();
    let rates = host.measured.as_ref()?;
    let value = match section {
        "[accelerator.measured]" => match key {
            "optimizer" => quoted_gigabytes(rates.optimizer.get()),
            _ => return None,
        },
        "[accelerator.measured.fp32]" => format_line(key, rates.fp32.as_ref()?)?,
        "[accelerator.measured.bf16]" => format_line(key, rates.bf16.as_ref()?)?,
        "[[accelerator.collective]]" if key == "us" => {
            let times = collective?.curve.points().map(|(_, time)| format!("{:.3}", time.get() * 1e6));
            format!("[{}]", times.collect::<Vec<_>>().join(", "))
        }
        _ => return None,
    };
    Some(format!("{key} = {value}"))
}

fn format_line(key: &str, rates: &FormatRates) -> Option<String> {
    let flops = match key {
        "products" => rates.products,
        "input_gradients" => rates.input_gradients,
        "weight_gradients" => rates.weight_gradients,
        "attention" => rates.attention,
        "attention_backward" => rates.attention_backward,
        "stream" => return Some(quoted_gigabytes(rates.stream.get())),
        "stream_in_cache" => return Some(quoted_gigabytes(rates.stream_in_cache.get())),
        _ => return None,
    };
    Some(format!("\"{:.2} GFLOP/s\"", flops.get() / 1e9))
}

fn quoted_gigabytes(bytes_per_second: f64) -> String {
    format!("\"{:.2} GB/s\"", bytes_per_second / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = include_str!("../../../../app/bedplate/tests/inputs/host-ranks.toml");

    fn host(text: &str) -> Accelerator {
        let catalog = Catalog::with_overlays(&[Source::new("host.toml", text)]).unwrap();
        catalog.accelerator("host").unwrap().clone()
    }

    #[test]
    fn a_rewritten_file_reads_as_the_moved_host_and_a_second_time_too() {
        let mut moved = host(HOST);
        let rates = moved.measured.as_mut().unwrap();
        rates.optimizer = rates.optimizer / 2.0;
        rates.fp32.as_mut().unwrap().products = rates.fp32.unwrap().products / 1.25;
        let text = rewritten(HOST, &host(HOST), &moved, 3);
        let found = host(&text).measured.unwrap();
        assert_eq!(found.optimizer, moved.measured.unwrap().optimizer);
        assert_eq!(found.fp32, moved.measured.unwrap().fp32);
        assert_eq!(host(&text).collectives.len(), host(HOST).collectives.len());
        assert_eq!(rewritten(&text, &host(&text), &host(&text), 3), text);
    }
}

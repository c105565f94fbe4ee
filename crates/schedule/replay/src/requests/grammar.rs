//! How arrivals, lengths, step times and limits are written in one text: `name=value,name=value`.

use bedplate_units::{Seconds, sequence_length};

use super::{Arrivals, Lengths, LinearEngine, Objectives, Picoseconds, Scaling, Transfer, picoseconds};

/// Known terms by name, each given at most once.
struct Terms<'a> {
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Terms<'a> {
    fn parse(text: &'a str, known: &[&str]) -> Result<Self, String> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for term in text.split(',') {
            let (name, value) = term.split_once('=').ok_or_else(|| format!("`{term}` is not name=value"))?;
            let (name, value) = (name.trim(), value.trim());
            if !known.contains(&name) {
                return Err(format!("`{name}` is not one of {}", known.join(", ")));
            }
            if given.iter().any(|(other, _)| *other == name) {
                return Err(format!("`{name}` is given twice"));
            }
            given.push((name, value));
        }
        Ok(Self { given })
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.given.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    fn time(&self, name: &str) -> Result<Option<Picoseconds>, String> {
        let parsed = self.text(name).map(|text| text.parse::<Seconds>().map_err(|error| error.to_string()));
        Ok(parsed.transpose()?.map(|time| picoseconds(time.get())))
    }

    fn needed_time(&self, name: &str) -> Result<Picoseconds, String> {
        self.time(name)?.filter(|time| *time > 0).ok_or_else(|| format!("`{name}` must be a time above 0"))
    }

    fn count(&self, name: &str) -> Result<Option<u32>, String> {
        let parsed = self.text(name).map(|text| text.parse::<u32>().ok().filter(|count| *count > 0));
        match parsed {
            Some(None) => Err(format!("`{name}` must be a whole number above 0")),
            other => Ok(other.flatten()),
        }
    }

    fn rate(&self, name: &str) -> Result<Option<f64>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        rate(text).map(Some).map_err(|_| format!("`{name}` must be a rate per second such as 20/s"))
    }
}

pub fn arrivals(text: &str) -> Result<Arrivals, String> {
    let terms = Terms::parse(text, &["users", "rate", "burst", "every", "for"])?;
    match (terms.count("users")?, terms.rate("rate")?, terms.rate("burst")?) {
        (Some(users), None, None) if terms.given.len() == 1 => Ok(Arrivals::Closed { users }),
        (None, Some(per_second), None) if terms.given.len() == 1 => Ok(Arrivals::Poisson { per_second }),
        (None, Some(per_second), Some(burst_per_second)) => Ok(Arrivals::Bursts {
            per_second,
            burst_per_second,
            period: terms.needed_time("every")?,
            lasting: terms.needed_time("for")?,
        }),
        _ => Err("write users=128, rate=20/s, or rate=5/s,burst=50/s,every=60s,for=5s".into()),
    }
}

/// A rate such as `20/s`.
pub fn rate(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix("/s").unwrap_or(text.trim()).parse::<f64>().ok();
    let rate = number.filter(|rate| *rate > 0.0 && *rate <= 1e9);
    rate.ok_or_else(|| format!("`{text}` is not a rate per second such as 20/s"))
}

/// No prompt and no answer is longer.
pub const MOST_TOKENS: u64 = 1 << 24;

pub fn lengths(text: &str) -> Result<Lengths, String> {
    let tokens = |text: &str| sequence_length::<u32>(text, MOST_TOKENS);
    match text.split_once("..") {
        None => Ok(Lengths::Fixed(tokens(text)?)),
        Some((low, high)) => {
            let (low, high) = (tokens(low)?, tokens(high)?);
            if low > high {
                return Err(format!("{low} is above {high}"));
            }
            Ok(Lengths::Between(low, high))
        }
    }
}

pub fn step_time(text: &str) -> Result<LinearEngine, String> {
    let terms = Terms::parse(text, &["step", "token", "kilopairs", "decode", "context"])?;
    Ok(LinearEngine {
        step: terms.needed_time("step")?,
        prefill_token: terms.time("token")?.unwrap_or(0),
        thousand_pairs: terms.time("kilopairs")?.unwrap_or(0),
        decode: terms.time("decode")?.unwrap_or(0),
        context_token: terms.time("context")?.unwrap_or(0),
    })
}

pub fn transfer(text: &str) -> Result<Transfer, String> {
    let terms = Terms::parse(text, &["latency", "token"])?;
    Ok(Transfer {
        latency: terms.time("latency")?.unwrap_or(0),
        per_token: terms.time("token")?.unwrap_or(0),
    })
}

pub fn scaling(text: &str) -> Result<Scaling, String> {
    let terms = Terms::parse(text, &["least", "most", "sequences", "every", "cold"])?;
    let needed = |name: &str| terms.count(name)?.ok_or_else(|| format!("`{name}` is missing"));
    Ok(Scaling {
        least: terms.count("least")?.unwrap_or(1),
        most: needed("most")?,
        sequences: needed("sequences")?,
        interval: terms.needed_time("every")?,
        cold_start: terms.time("cold")?.unwrap_or(0),
    })
}

pub fn objectives(text: &str) -> Result<Objectives, String> {
    let terms = Terms::parse(text, &["ttft", "itl", "e2e"])?;
    let limit = |name: &str| match terms.time(name)? {
        Some(0) => Err(format!("`{name}` must be a time above 0")),
        limit => Ok(limit),
    };
    Ok(Objectives { ttft: limit("ttft")?, itl: limit("itl")?, end_to_end: limit("e2e")? })
}

pub fn split(text: &str) -> Result<(u32, u32), String> {
    let count = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count > 0);
    let counts = text.split_once('+').and_then(|(prefill, decode)| Some((count(prefill)?, count(decode)?)));
    counts.ok_or_else(|| "write the replicas that compute prompts and those that decode, such as 2+4".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        assert_eq!(arrivals("users=128"), Ok(Arrivals::Closed { users: 128 }));
        assert_eq!(arrivals("rate=2.5/s"), Ok(Arrivals::Poisson { per_second: 2.5 }));
        assert_eq!(lengths("100..200"), Ok(Lengths::Between(100, 200)));
        assert_eq!(split("2+4"), Ok((2, 4)));
        assert_eq!(step_time("step=8ms,context=20ns").map(|engine| engine.context_token), Ok(20_000));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_hint() {
        for (parsed, hint) in [
            (arrivals("users=0").err(), "above 0"),
            (arrivals("users=5,rate=3").err(), "write users=128"),
            (arrivals("rate=5,burst=9").err(), "`every`"),
            (arrivals("speed=5").err(), "is not one of"),
            (lengths("200..100").err(), "above"),
            (lengths("0").err(), "from 1"),
            (step_time("token=5us").err(), "`step`"),
            (step_time("step=5").err(), "no unit"),
            (step_time("step=5ms,step=6ms").err(), "twice"),
            (split("2").err(), "such as 2+4"),
        ] {
            assert!(parsed.as_ref().is_some_and(|text| text.contains(hint)), "{parsed:?} has no {hint}");
        }
    }
}

//! Times as Slurm writes them: `minutes`, `minutes:seconds`, `hours:minutes:seconds`, and `days-` before `hours`,
//! `hours:minutes` or `hours:minutes:seconds`.

/// The seconds of a time, or what is wrong with it.
pub fn seconds(text: &str) -> Result<u64, &'static str> {
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (Some(number(days)?), clock),
        None => (None, text.trim()),
    };
    let parts = clock.split(':').map(number).collect::<Result<Vec<u64>, _>>()?;
    let seconds = match (days, parts.as_slice()) {
        (None, [minutes]) => minutes * 60,
        (None, [minutes, seconds]) => minutes * 60 + seconds,
        (Some(_), [hours]) => hours * 3600,
        (Some(_), [hours, minutes]) => hours * 3600 + minutes * 60,
        (_, [hours, minutes, seconds]) => hours * 3600 + minutes * 60 + seconds,
        _ => return Err("it has too many parts"),
    };
    Ok(days.unwrap_or(0) * 86_400 + seconds)
}

fn number(part: &str) -> Result<u64, &'static str> {
    let is_number = (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    part.parse().ok().filter(|_| is_number).ok_or("each part is a whole number")
}

/// Seconds as `hours:minutes:seconds`, with the days in front where there are any.
pub fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        for (text, expected) in [
            ("90", 5400),
            ("10:00", 600),
            ("0:30", 30),
            ("2:30:00", 9000),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("1-00:00:00", 86_400),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
            assert_eq!(seconds(&time(expected)), Ok(expected), "{text}");
        }
        for text in ["", "UNLIMITED", "-1", "1:2:3:4", "1-", "+5", "1234567890"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}

//! What programs print of their settings and versions when they start.
//!
//! Megatron's list of arguments, `key: value` lines of configurations, and versions of the libraries that matter.

use std::sync::OnceLock;

use regex::bytes::Regex;

/// Settings that are kept of one log.
pub(crate) const MOST_SETTINGS: usize = 4096;
/// Only the beginning of a log is looked at.
pub(crate) const LOOKED_AT: u64 = 4 << 20;
const LONGEST: usize = 200;

struct Patterns {
    dotted: Regex,
    version: Regex,
    configuration: Regex,
}

fn patterns() -> &'static Patterns {
    static PATTERNS: OnceLock<Patterns> = OnceLock::new();
    PATTERNS.get_or_init(|| {
        let pattern = |text: &str| Regex::new(text).expect("a fixed pattern");
        Patterns {
            // `  num_layers ...................... 24`
            dotted: pattern(r"^\s*([A-Za-z][\w.-]{1,60}) \.{5,} (.+?)\s*$"),
            version: pattern(
                r"(?i-u)\b(NCCL|CUDA|cuDNN|PyTorch|torch|transformers|DeepSpeed|Megatron(?:-LM|-Core)?|vLLM|SGLang|JAX|Driver) version:? ?v?(\d+(?:\.\w+)+[\w+.]*)",
            ),
            // `"hidden_size": 4096,` of a configuration that is printed as JSON or as a Python dictionary.
            configuration: pattern(r#"^\s*["']([A-Za-z]\w{1,60})["']: ([^\[\]{}]{1,100}?),?\s*$"#),
        }
    })
}

/// The settings that a line tells, with the version of a library as `version of NAME`.
pub(crate) fn of_line(line: &[u8]) -> Option<(String, String)> {
    let patterns = patterns();
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]).into_owned();
    if memchr::memmem::find(line, b" .....").is_some()
        && let Some(found) = patterns.dotted.captures(line)
    {
        return Some((text(&found[1]), text(&found[2])));
    }
    if let Some(found) = patterns.version.captures(line) {
        return Some((format!("version of {}", text(&found[1])), text(&found[2])));
    }
    let found = patterns.configuration.captures(line)?;
    Some((text(&found[1]), text(&found[2])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_as_programs_print_them() {
        for (line, name, value) in [
            ("  num_layers ...................................... 24", "num_layers", "24"),
            ("node04: NCCL version 2.21.5+cuda12.4", "version of NCCL", "2.21.5+cuda12.4"),
            (r#"  "hidden_size": 4096,"#, "hidden_size", "4096"),
            (
                "  train_data_path ........... ['/data/a', '/data/b']",
                "train_data_path",
                "['/data/a', '/data/b']",
            ),
        ] {
            assert_eq!(of_line(line.as_bytes()), Some((name.to_owned(), value.to_owned())));
        }
        for line in ["loading ...", "iteration 10/ 100 | loss: 3.1", "waiting ... done", "{'loss': 3.1}"] {
            assert_eq!(of_line(line.as_bytes()), None, "{line}");
        }
    }
}

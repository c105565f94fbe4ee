//! The page about jobs has every key of the reader and every option, and nothing else.

use std::collections::BTreeSet;

use bedplate_document::DocumentError;
use bedplate_job::sbatch::{OPTIONS, SbatchOption};
use bedplate_job::{Job, JobError};

const PAGE: &str = include_str!("../../../../docs/job.md");

/// The keys that a table of the job file knows, as its refusal of an unknown one lists them.
fn known_keys(rest: &str) -> BTreeSet<String> {
    let text = format!("name = 'a'\ncommand = ['b']\n{rest}");
    match Job::from_toml(&text, "job.toml") {
        Err(JobError::Document(DocumentError::UnknownKey { known, .. })) => known.into_iter().collect(),
        other => panic!("{other:?}"),
    }
}

/// The first cells of the tables under a heading of the page.
fn page_keys(heading: &str) -> BTreeSet<String> {
    let (_, section) = PAGE.split_once(&format!("### {heading}\n")).expect("the heading is on the page");
    let section = section.split("\n#").next().expect("a split has a first part");
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    section.lines().filter_map(cell).collect()
}

#[test]
fn every_key_is_on_the_page_and_every_key_of_the_page_is_read() {
    for (heading, probe) in [
        ("The job", "not_a_key = 1\n"),
        ("`[[role]]`", "[[role]]\nname = 'x'\nnot_a_key = 1\n"),
        ("`elastic`", "elastic = { min = 1, max = 1, not_a_key = 1 }\n"),
        ("`checkpoint_signal`", "checkpoint_signal = { signal = 1, not_a_key = 1 }\n"),
        ("`[placement]`", "[placement]\nnot_a_key = 1\n"),
        ("`[health]`", "[health]\nnot_a_key = 1\n"),
        ("`[kubernetes]`", "[kubernetes]\nnot_a_key = 1\n"),
        ("`[[kubernetes.volume]]`", "[[kubernetes.volume]]\nmount = '/a'\nempty = true\nnot_a_key = 1\n"),
        ("`[expected]`", "[expected]\nnot_a_key = 1\n"),
    ] {
        assert_eq!(page_keys(heading), known_keys(probe), "{heading}");
    }
    let mut parts = page_keys("`[expected]`");
    parts.remove("hidden");
    assert_eq!(parts, known_keys("[expected.hidden]\nnot_a_key = 1\n"));
}

fn row(option: &SbatchOption) -> String {
    let letter = option.letter.map(|letter| format!(", `-{letter}`")).unwrap_or_default();
    format!("| `--{}`{letter} | {} |\n", option.name, option.meaning.replace('|', "\\|"))
}

#[test]
fn every_option_is_on_the_page() {
    let header = "| option | what becomes of it |\n|---|---|\n";
    let (before, found) = PAGE.split_once(header).expect("the page has the table");
    let expected: String = OPTIONS.iter().map(row).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/job.md");
        std::fs::write(path, format!("{before}{header}{expected}")).unwrap();
        return;
    }
    assert!(found == expected, "docs/job.md is not current; run `UPDATE_EXPECT=1 ./test`");
}

#[test]
fn every_letter_of_patterns_is_on_the_page() {
    for letter in ["j", "A", "a", "x", "u", "N", "n", "t", "s", "J", "%"] {
        assert!(PAGE.contains(&format!("`%{letter}`")), "%{letter}");
    }
}

#[test]
fn the_examples_of_the_page_are_jobs_that_can_run() {
    let examples: Vec<&str> =
        PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 3);
    for example in examples {
        let job = Job::from_toml(example, "docs/job.md").unwrap();
        assert_eq!(job.flaws(), [], "{example}");
    }
}

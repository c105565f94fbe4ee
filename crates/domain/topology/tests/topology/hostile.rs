//! No input makes a reader panic, hang or grow without bound.

use bedplate_diag::{Diagnostic, Source};
use bedplate_topology::{Format, ImportOptions, detect, import};
use proptest::prelude::*;

use crate::support::*;

const SAMPLES: [(Format, &str); 10] = [
    (Format::Spec, "p5.48xlarge:64+p5en.48xlarge:8"),
    (Format::Slurm, TOPOLOGY_CONF),
    (Format::Slurm, SLURM_CONF),
    (Format::Slurm, BLOCK_CONF),
    (Format::Slurm, TOPOLOGY_YAML),
    (Format::Document, CLUSTER_TOML),
    (Format::Ec2, EC2),
    (Format::Kubernetes, NODES_JSON),
    (Format::Kubernetes, NODES_YAML),
    (Format::NvidiaSmi, NVIDIA_SMI),
];

/// Reads a text in every format. Errors are fine, as long as they can be shown.
fn read_all(text: &str) {
    let source = Source::new("input", text);
    let _ = detect(source);
    let instance = ImportOptions { instance: Some("p5.48xlarge".into()), ..ImportOptions::default() };
    for (_, format) in Format::ALL {
        for options in [&ImportOptions::default(), &instance] {
            match import(format, &[source], options, &CATALOG) {
                Ok(cluster) => drop(cluster.summary().to_string()),
                Err(error) => drop((bedplate_diag::render_text(&error), error.help())),
            }
        }
    }
}

/// A change to a text: cut, doubled or overwritten at a place.
#[derive(Debug, Clone)]
enum Change {
    Cut(usize),
    Repeat,
    Insert(String),
}

fn changes() -> impl Strategy<Value = (prop::sample::Index, Change)> {
    let inserted = prop::sample::select(vec![
        "\0",
        "\u{1b}[",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "\"",
        "'",
        "=",
        ",",
        "-",
        "\\\n",
        "\n",
        "\t",
        " ",
        "#",
        "9999999999999999999",
        "[1-999999999999]",
        "0",
        "NaN",
        "-1",
        "1e308",
        "é",
        "\u{feff}",
        "null",
        "true",
        ": ",
        "- ",
        "&a ",
        "*a",
        "X",
        "NV",
    ]);
    let change = prop_oneof![
        (1..40usize).prop_map(Change::Cut),
        Just(Change::Repeat),
        inserted.prop_map(|text| Change::Insert(text.to_owned())),
        ".{1,4}".prop_map(Change::Insert),
    ];
    (any::<prop::sample::Index>(), change)
}

fn changed(text: &str, changes: &[(prop::sample::Index, Change)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for (at, change) in changes {
        let at = at.index(characters.len() + 1);
        match change {
            Change::Cut(length) => drop(characters.drain(at..(at + length).min(characters.len()))),
            Change::Repeat => {
                let line: Vec<char> = characters[at..].iter().copied().take(60).collect();
                characters.splice(at..at, line);
            }
            Change::Insert(text) => drop(characters.splice(at..at, text.chars())),
        }
    }
    characters.into_iter().collect()
}

proptest! {
    #[test]
    fn changed_samples_are_read_or_refused(
        sample in prop::sample::select(SAMPLES.to_vec()),
        changes in prop::collection::vec(changes(), 1..6),
    ) {
        let text = changed(sample.1, &changes);
        let instance = ImportOptions { accelerator: Some("h100".into()), ..ImportOptions::default() };
        if let Ok(cluster) = import(sample.0, &[Source::new("input", &text)], &instance, &CATALOG) {
            let _ = cluster.summary();
        }
    }

    #[test]
    fn any_text_is_read_or_refused_in_every_format(text in "(?s).{0,200}") {
        read_all(&text);
    }
}

#[test]
fn deep_and_long_texts_are_refused() {
    let million = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    for text in [
        "[".repeat(million),
        "{\"Instances\":".to_owned() + &"[".repeat(million),
        "{\"kind\": \"List\", \"items\": [{\"x\":".to_owned() + &"[".repeat(million),
        "- ".repeat(200_000),
        "kind: List\nitems:\n".to_owned() + &"- ".repeat(200_000),
        "a: &a [x]\n".to_owned() + &"b: [*a,*a,*a,*a]\n".repeat(10_000),
        "x=".to_owned() + &"[".repeat(million),
        "SwitchName=s Nodes=".to_owned() + &"n[1-9]".repeat(million),
        "SwitchName=s Nodes=".to_owned() + &"[".repeat(million),
        "NodeName=n[1-100000] Gres=gpu:h100:8\n".repeat(20),
        "NodeName=n Gres=".to_owned() + &"gpu:h100:1,".repeat(100_000),
        "p5.48xlarge:1+".repeat(300_000),
        "p5.48xlarge:99999999999999".to_owned(),
        "\\\n".repeat(million),
        "GPU0 ".repeat(million),
        "GPU0 GPU1\nGPU0 X\n".to_owned(),
        "\u{0}\u{1}\u{2}\u{7f}\u{85}".repeat(million / 5),
        "# comment\n".repeat(million / 5),
        "x\n".repeat(million),
        "SwichName=s Nodes=n1\n".repeat(million / 5),
        "NodeSet=s Nodes=n1\n".repeat(million / 5),
    ] {
        read_all(&text);
    }
}

#[test]
fn a_tree_as_deep_as_the_file_is_refused_in_time() {
    let mut text = String::from("NodeName=n1 Gres=gpu:h100:8\nSwitchName=s0 Nodes=n1\n");
    for switch in 1..100_000 {
        text += &format!("SwitchName=s{switch} Switches=s{}\n", switch - 1);
    }
    let error = read(Format::Slurm, &[("slurm.conf", &text)], &ImportOptions::default()).unwrap_err();
    assert_eq!(error.page().code, "cluster/too-many");
}

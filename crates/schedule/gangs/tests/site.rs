//! The rules of a site from a file: the example, the page about it, and what is said when something is wrong.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;

use bedplate_catalog::Catalog;
use bedplate_diag::render_text;
use bedplate_document::DocumentError;
use bedplate_gangs::{AccountId, Accounts, Grant, QosId, Settings, SettingsError, Span};
use bedplate_topology::Cluster;
use expect_test::{Expect, expect};

const EXAMPLE: &str = include_str!("../../../../docs/site.toml");
const PAGE: &str = include_str!("../../../../docs/site.md");

fn read(text: &str) -> Result<Settings, SettingsError> {
    let cluster = Cluster::from_spec("p5.48xlarge:8", &Catalog::builtin()).unwrap();
    Settings::from_toml(text, "site.toml", &cluster)
}

#[test]
fn an_empty_file_gives_the_defaults() {
    assert_eq!(read("").unwrap(), Settings::default());
    let tables = "[weights]\n[backfill]\n[preemption]\n[elastic]\n";
    assert_eq!(read(tables).unwrap(), Settings::default());
}

#[test]
fn the_example_says_what_its_comments_say() {
    let settings = read(EXAMPLE).unwrap();
    assert_eq!(settings.weights.half_life, Span::days(14));
    let names: Vec<&str> = settings.partitions.iter().map(|partition| partition.name.as_str()).collect();
    assert_eq!(names, ["main", "interactive"]);
    assert_eq!(settings.partitions[0].nodes, None);
    assert_eq!(settings.partitions[1].nodes.as_ref().unwrap().len(), 2);
    assert_eq!(settings.qos[1].preempts, [QosId(0), QosId(2)]);
    let account = |name| settings.accounts.find(name).unwrap();
    assert_eq!(account("root"), Accounts::ROOT);
    assert!(account("vision") > account("research"));
    let (queues, company) = (&settings.queues, settings.queues.find("company").unwrap());
    assert_eq!(
        queues.most(company, "h100"),
        16 + 24,
        "the grants of its children, less what one keeps to itself"
    );
    assert_eq!(queues.most(queues.find("product").unwrap(), "h100"), 24 + 16);
    assert_eq!(queues.most(queues.find("research").unwrap(), "h100"), 40 + 24);
}

#[test]
fn trees_may_be_written_in_any_order() {
    let child_first = read(
        "[[account]]\nname = \"b\"\nparent = \"a\"\n[[account]]\nname = \"a\"\nshares = 2\n
         [[queue]]\nname = \"y\"\nparent = \"x\"\ngrant = [{ nominal = 3 }]\n[[queue]]\nname = \"x\"\n",
    )
    .unwrap();
    let mut accounts = Accounts::default();
    let a = accounts.add("a", Accounts::ROOT, 2);
    accounts.add("b", a, 1);
    assert_eq!(child_first.accounts, accounts);
    let mut queues = bedplate_gangs::Queues::default();
    let x = queues.add("x", None, 1.0);
    let y = queues.add("y", Some(x), 1.0);
    queues.grant(y, "gpu", Grant { nominal: 3, borrowing: None, lending: None });
    assert_eq!(child_first.queues, queues);
    assert_eq!(child_first.accounts.find("b"), Some(AccountId(2)));
}

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&render_text(&read(text).unwrap_err()));
}

#[test]
fn complaints_name_the_line_the_key_and_the_remedy() {
    check(
        "[[partition]]\nname = \"a\"\nnodes = [\"n[1-9]\"]\n",
        expect![[r#"
        error[site/undefined]: there is no node called `n9`
          in   site.toml:3:9: nodes = ["n[1-9]"]
        help:  correct the spelling, or add the entry
    "#]],
    );
    check(
        "[[partition]]\nname = \"a\"\nnodes = [\"n[9-1]\"]\n",
        expect![[r#"
        error[document/bad-value]: `nodes` of partition `a` cannot be used: the node list `n[9-1]` cannot be read: the range `9-1` runs backwards
          in   site.toml:3:9: nodes = ["n[9-1]"]
        help:  change the value as the message says
    "#]],
    );
    check(
        "[[partition]]\nname = \"a\"\nnodes = []\n",
        expect![[r#"
        error[document/bad-value]: `nodes` of partition `a` cannot be used: it is empty; leave it out for all nodes
          in   site.toml:3:9: nodes = []
        help:  change the value as the message says
    "#]],
    );
    check(
        "[[partition]]\nnodes = [\"n1\"]\n",
        expect![[r#"
        error[document/missing-key]: partition lacks the key `name`
          in   site.toml:1:1: [[partition]]
        help:  add `name = …`, a text in quotes
    "#]],
    );
    check(
        "[[qos]]\nname = \"a\"\n[[qos]]\nname = \"a\"\n",
        expect![[r#"
        error[site/duplicate]: qos `a` is stated twice
          in   site.toml:4:8: name = "a"
        help:  remove or rename one of the two
    "#]],
    );
    check(
        "[[qos]]\nname = \"normal\"\n[[qos]]\nname = \"high\"\npreempts = [\"normall\"]\n",
        expect![[r#"
        error[site/undefined]: there is no qos called `normall`
          in   site.toml:5:12: preempts = ["normall"]
        help:  did you mean `normal`?
    "#]],
    );
    check(
        "[[account]]\nname = \"a\"\nparent = \"b\"\n[[account]]\nname = \"b\"\nparent = \"a\"\n",
        expect![[r#"
            error[site/cycle]: account `a` is above itself
              in   site.toml:3:10: parent = "b"
            help:  remove one of the `parent` keys
        "#]],
    );
    check(
        "[[account]]\nname = \"root\"\n",
        expect![[r#"
        error[site/duplicate]: account `root` is stated twice
          in   site.toml:2:8: name = "root"
        help:  remove or rename one of the two
    "#]],
    );
    check(
        "[[queue]]\nname = \"a\"\nparent = \"b\"\n",
        expect![[r#"
        error[site/undefined]: there is no queue called `b`
          in   site.toml:3:10: parent = "b"
        help:  correct the spelling, or add the entry
    "#]],
    );
    check(
        "[[queue]]\nname = \"a\"\n[[queue.grant]]\ngpu = \"h1000\"\nnominal = 8\n",
        expect![[r#"
        error[site/undefined]: there is no GPU type called `h1000`
          in   site.toml:4:7: gpu = "h1000"
        help:  did you mean `h100`?
    "#]],
    );
    check(
        "[weights]\nage = -1\n",
        expect![[r#"
        error[document/bad-value]: `age` of [weights] cannot be used: -1 is not a whole number of zero or more
          in   site.toml:2:7: age = -1
        help:  change the value as the message says
    "#]],
    );
    check(
        "[weights]\nhalf_life = \"7\"\n",
        expect![[r#"
        error[document/bad-value]: `half_life` of [weights] cannot be used: `7` has no unit; a duration reads like `600ms`
          in   site.toml:2:13: half_life = "7"
        help:  change the value as the message says
    "#]],
    );
    check(
        "[weights]\nhalflife = \"7 days\"\n",
        expect![[r#"
        error[document/unknown-key]: [weights] has the unknown key `halflife`
          in   site.toml:2:1: halflife = "7 days"
        help:  did you mean `half_life`?
    "#]],
    );
    check(
        "[elastic]\nleast_gain = 1.5\n",
        expect![[r#"
        error[document/bad-value]: `least_gain` of [elastic] cannot be used: 1.5 is not between 0 and 1
          in   site.toml:2:14: least_gain = 1.5
        help:  change the value as the message says
    "#]],
    );
    check(
        "[backfill]\nreserved = 0\n",
        expect![[r#"
        error[document/bad-value]: `reserved` of [backfill] cannot be used: it must be at least 1
          in   site.toml:2:12: reserved = 0
        help:  change the value as the message says
    "#]],
    );
    check(
        "packing = \"tight\"\n",
        expect![[r#"
        error[document/bad-value]: `packing` of the file cannot be used: `tight` is unknown; the choices are topology, first_fit
          in   site.toml:1:11: packing = "tight"
        help:  change the value as the message says
    "#]],
    );
}

/// The keys that the reader knows in each table, from its complaint about one that it does not know.
fn keys_read(section: &str) -> BTreeSet<String> {
    let queue = "[[queue]]\nname = \"a\"\n";
    let text = match section {
        "" => "zzz = 1".to_owned(),
        "[[queue.grant]]" => format!("{queue}{section}\nzzz = 1"),
        _ if section.starts_with("[[") => format!("{section}\nname = \"a\"\nzzz = 1"),
        _ => format!("{section}\nzzz = 1"),
    };
    match read(&text).unwrap_err() {
        SettingsError::Document(DocumentError::UnknownKey { known, .. }) => known.into_iter().collect(),
        other => panic!("{section}: {other}"),
    }
}

/// The keys in the first column of the table below a heading.
fn keys_on_page(heading: &str) -> BTreeSet<String> {
    let (_, rest) =
        PAGE.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let chapter = rest.split("\n## ").next().unwrap();
    let cells = chapter.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    cells.flat_map(|cell| cell.split(", ")).map(|key| key.trim_matches('`').to_owned()).collect()
}

#[test]
fn the_page_has_exactly_the_keys_that_are_read() {
    // The control plane takes these before the scheduler reads the rest.
    const OF_CONTROL_PLANE: [&str; 3] = ["diagnosis", "retention", "rules"];
    let read: BTreeSet<String> =
        keys_read("").into_iter().chain(OF_CONTROL_PLANE.map(str::to_owned)).collect();
    assert_eq!(keys_on_page("The file itself"), read);
    let sections = PAGE.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'));
    let is_ours = |section: &&str| !OF_CONTROL_PLANE.contains(&section.trim_matches(['[', ']']));
    let sections: Vec<&str> = sections.filter(is_ours).collect();
    assert_eq!(sections.len(), 9);
    for section in sections {
        assert_eq!(keys_on_page(&format!("`{section}`")), keys_read(section), "{section}");
    }
}

#[test]
fn the_example_has_every_key() {
    let words: BTreeSet<&str> =
        EXAMPLE.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).collect();
    let sections = PAGE.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'));
    for section in sections {
        for key in keys_read(section) {
            assert!(words.contains(key.as_str()), "{section} {key}");
        }
    }
}

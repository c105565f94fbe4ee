//! Rules that people write, right and wrong.

use bedplate_diag::render_text;
use bedplate_finding::Action;
use expect_test::{Expect, expect};

use super::*;

const METRICS: [&str; 2] = ["DCGM_FI_DEV_GPU_TEMP", "node_load1"];

fn own(text: &str) -> Result<Rules, HealthError> {
    Rules::built_in(Profile::Nvidia).with_own(text, "own.toml", &METRICS)
}

fn refuse(text: &str, expected: Expect) {
    expected.assert_eq(&render_text(&own(text).unwrap_err()));
}

#[test]
fn the_built_in_rules_are_right_and_explain_themselves() {
    let rules = Rules::built_in(Profile::Nvidia);
    assert!(rules.all().len() > 40);
    for rule in rules.all() {
        let texts = [&rule.summary, &rule.why, &rule.remedy];
        assert!(texts.iter().all(|text| text.len() > 10), "{}", rule.name);
    }
}

#[test]
fn a_sites_rule_adds_to_the_built_in_ones_or_replaces_one() {
    let rules = own(r#"
        profile = "strict"
        [[rule]]
        name = "gpu/hot"
        metric = "DCGM_FI_DEV_GPU_TEMP"
        above = 70
        lasts = "5 min"
        layer = "hardware"
        action = "drain"
        [[rule]]
        name = "site/load"
        metric = "node_load1"
        above = 500
        layer = "software"
        action = "alert"
    "#)
    .unwrap();
    assert_eq!(rules.profile, Profile::Strict);
    assert_eq!(rules.all().len(), Rules::built_in(Profile::Nvidia).all().len() + 1);
    let hot = rules.all().iter().find(|rule| rule.name == "gpu/hot").unwrap();
    assert_eq!(hot.action(Profile::Nvidia), Action::Drain);
    let Condition::Level { lasts_ms, .. } = &hot.condition else { panic!("{hot:?}") };
    assert_eq!(*lasts_ms, 300_000);
}

#[test]
fn mistakes_are_named_with_place_and_remedy() {
    refuse(
        "[[rule]]\nname = \"site/x\"\nmetric = \"DCGM_FI_DEV_GPU_TEMPS\"\nabove = 1\nlayer = \"hardware\"\naction = \"alert\"\n",
        expect![[r#"
            error[health/unknown-metric]: rule `site/x` watches `DCGM_FI_DEV_GPU_TEMPS`, which is not a metric of the exporter
              in   own.toml:3:10: metric = "DCGM_FI_DEV_GPU_TEMPS"
            help:  did you mean `DCGM_FI_DEV_GPU_TEMP`?
        "#]],
    );
    refuse(
        "[[rule]]\nname = \"site/x\"\nmetric = \"node_load1\"\nlayer = \"hardware\"\naction = \"alert\"\n",
        expect![[r#"
            error[health/no-limit]: rule `site/x` says nothing about when `node_load1` is bad
              in   own.toml:1:1: [[rule]]
            help:  add a limit, for example `above = 90`, or `increase = 1` with `within = "10 min"`
        "#]],
    );
    refuse(
        "[[rule]]\nname = \"site/x\"\nmetric = \"node_load1\"\nlog = [\"x\"]\nabove = 1\nlayer = \"hardware\"\naction = \"alert\"\n",
        expect![[r#"
            error[health/condition]: rule `site/x` has metric and log, and a rule watches exactly one of `metric`, `log` and `xid`
              in   own.toml:1:1: [[rule]]
            help:  keep one of the three keys; write a second rule for a second condition
        "#]],
    );
    refuse(
        "[[rule]]\nname = \"site/x\"\nmetric = \"node_load1\"\nabove = 1\nlayer = \"hardware\"\naction = \"explode\"\n",
        expect![[r#"
            error[document/bad-value]: `action` of rule `site/x` cannot be used: `explode` is unknown; the choices are record, watch, alert, restart-job, reset-device, drain, reboot, replace
              in   own.toml:6:10: action = "explode"
            help:  change the value as the message says
        "#]],
    );
    refuse(
        "[[rule]]\nname = \"site/x\"\nmetric = \"node_load1\"\nabove = 1\nbelow = 2\nlayer = \"hardware\"\naction = \"alert\"\n",
        expect![[r#"
            error[document/bad-value]: `below` of rule `site/x` cannot be used: a rule has one of `above`, `below`, `below_metric` and `bits`
              in   own.toml:5:9: below = 2
            help:  change the value as the message says
        "#]],
    );
    refuse(
        "[[rule]]\nname = \"site/x\"\nmetric = \"node_load1\"\nincrease = 1\nlayer = \"hardware\"\naction = \"alert\"\n",
        expect![[r#"
            error[document/missing-key]: rule `site/x` lacks the key `within`
              in   own.toml:1:1: [[rule]]
            help:  add `within = …`, a duration such as "600ms"
        "#]],
    );
    refuse(
        "[[rule]]\nname = \"site/x\"\nxid = [79]\nevery = 3\nlayer = \"hardware\"\naction = \"alert\"\n",
        expect![[r#"
            error[document/unknown-key]: rule `site/x` has the unknown key `every`
              in   own.toml:4:1: every = 3
            help:  did you mean `severity`?
        "#]],
    );
}

/// A rule that is taken in and can never fire is worse than none.
#[test]
fn what_could_not_be_honoured_is_refused() {
    let long = "x".repeat(5000);
    for (lines, code, told) in [
        ("metric = \"node_load1\"\nabove = nan", "document/bad-value", "finite"),
        ("metric = \"node_load1\"\nabove = inf", "document/bad-value", "finite"),
        ("metric = \"node_load1\"\nbits = 0", "document/bad-value", "52 bits"),
        ("metric = \"node_load1\"\nbits = 1152921504606846976", "document/bad-value", "52 bits"),
        (
            "metric = \"node_load1\"\nincrease = -1\nwithin = \"1 min\"",
            "document/bad-value",
            "more than zero",
        ),
        ("metric = \"node_load1\"\nincrease = 1\nwithin = \"0 s\"", "document/bad-value", "a second"),
        (
            "metric = \"node_load1\"\nincrease = 1\nwithin = \"1 min\"\nfaster_than = 0\nbaseline = \"1 h\"",
            "document/bad-value",
            "more than zero",
        ),
        ("log = [\"x\"]\nwithin = \"1 ms\"", "document/bad-value", "a second"),
        ("log = [\"x\"]\nwithin = \"999 d\"", "document/bad-value", "30 days"),
        ("log = []", "document/bad-value", "at least one"),
        ("xid = []", "document/bad-value", "at least one"),
        (
            "metric = \"node_load1\"\nabove = 1\nwhile = { metric = \"node_load1\", below_metric = \"node_load1\" }",
            "document/bad-value",
            "number",
        ),
        ("metric = \"node_load1\"\nabove = 1\nsummary = \"two\\nlines\"", "document/bad-value", "one line"),
        (&format!("metric = \"node_load1\"\nabove = 1\nwhy = \"{long}\""), "document/bad-value", "letters"),
    ] {
        let text =
            format!("[[rule]]\nname = \"site/x\"\n{lines}\nlayer = \"hardware\"\naction = \"alert\"\n");
        let error = own(&text).expect_err(lines);
        let shown = render_text(&error);
        assert!(
            shown.contains(code) && shown.contains(told) && shown.contains("own.toml:"),
            "{lines}\n{shown}"
        );
    }
}

#[test]
fn names_that_would_become_one_alert_are_refused() {
    let named = |name: &str| {
        own(&format!(
            "[[rule]]\nname = \"{name}\"\nlog = [\"x\"]\nlayer = \"hardware\"\naction = \"alert\"\n"
        ))
    };
    assert!(named("gpu/hot").is_ok() && named("site/hot").is_ok());
    for name in ["gpu-hot", "gpu//hot", "gpu/hot/"] {
        assert!(matches!(named(name), Err(HealthError::Alike { .. })), "{name}");
    }
    for name in ["", "-", "///", "7", "Gpu", "a b", &"x".repeat(101)] {
        assert!(matches!(named(name), Err(HealthError::Document(_))), "{name}");
    }
}

#[test]
fn a_file_of_very_many_rules_is_refused_at_once() {
    let rule = |number: usize| {
        format!(
            "[[rule]]\nname = \"site/x{number}\"\nxid = [{number}]\nlayer = \"hardware\"\naction = \"alert\"\n"
        )
    };
    let many: String = (0..=MOST_RULES).map(rule).collect();
    assert!(render_text(&own(&many).unwrap_err()).contains("more than 1000 rules"));
}

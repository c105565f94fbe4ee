//! The real promtool takes the rules, passes their unit tests, and takes the scrape configurations.

#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bedplate_health::{Profile, Rules};
use bedplate_prometheus::{NodeDiscovery, RuleOptions, Scrape, groups, names, rules_file, tests_file};

/// A folder of its own for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bedplate-promtool-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("the machine of the tests has room");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("the machine of the tests has room");
    }

    fn promtool(&self, arguments: &[&str]) -> Option<(bool, String)> {
        let output = Command::new("promtool").args(arguments).current_dir(&self.0).output();
        let Ok(output) = output else {
            println!("SKIPPED: promtool is not installed");
            return None;
        };
        let text = [output.stdout, output.stderr].concat();
        Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }

    fn passes(&self, arguments: &[&str]) {
        if let Some((is_good, told)) = self.promtool(arguments) {
            assert!(is_good, "promtool {}: {told}", arguments.join(" "));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn options(profile: Profile, hostname: &str) -> RuleOptions {
    RuleOptions { rules: Rules::built_in(profile), hostname: hostname.to_owned(), interval_s: None }
}

#[test]
fn promtool_takes_the_rules_of_every_profile_and_spelling() {
    let folder = Folder::new("check");
    for profile in Profile::ALL {
        for hostname in ["Hostname", "hostname"] {
            folder.write("rules.yml", &rules_file(&options(profile, hostname)));
            folder.passes(&["check", "rules", "rules.yml"]);
        }
    }
}

#[test]
fn every_alert_fires_and_keeps_silent_as_its_tests_say() {
    let folder = Folder::new("test");
    for (profile, hostname) in [(Profile::Nvidia, "Hostname"), (Profile::Strict, "hostname")] {
        let options = options(profile, hostname);
        folder.write("rules.yml", &rules_file(&options));
        folder.write("rules_test.yml", &tests_file(&options, "rules.yml"));
        folder.passes(&["test", "rules", "rules_test.yml"]);
    }
}

#[test]
fn a_rule_that_is_wrong_fails_its_tests() {
    let folder = Folder::new("wrong");
    let options = options(Profile::Nvidia, "Hostname");
    let wrong = rules_file(&options).replace("DCGM_FI_DEV_GPU_TEMP > 90", "DCGM_FI_DEV_GPU_TEMP > 99");
    assert!(wrong.contains("> 99"));
    folder.write("rules.yml", &wrong);
    folder.write("rules_test.yml", &tests_file(&options, "rules.yml"));
    if let Some((is_good, told)) = folder.promtool(&["test", "rules", "rules_test.yml"]) {
        assert!(!is_good && told.contains("GpuHot"), "{told}");
    }
}

#[test]
fn a_sites_own_rule_becomes_an_alert_with_its_tests() {
    let own = "[[rule]]\nname = \"site/load\"\nmetric = \"node_load1\"\nabove = 500\nlayer = \"application\"\nseverity = \"warning\"\nlasts = \"2 min\"\naction = \"alert\"\nsummary = \"too many processes\"\nwhy = \"it swaps\"\nremedy = \"look\"\n";
    let rules = Rules::built_in(Profile::Nvidia).with_own(own, "own.toml", &[]).expect("the rule is right");
    let options = RuleOptions { rules, ..RuleOptions::default() };
    assert!(
        rules_file(&options)
            .contains("alert: SiteLoad\n        expr: \"node_load1 > 500\"\n        for: 2m\n")
    );
    assert!(tests_file(&options, "rules.yml").contains("alertname: SiteLoad"));
}

#[test]
fn promtool_takes_whatever_a_site_writes_into_its_rules() {
    let folder = Folder::new("hostile");
    let own = r#"
        [[rule]]
        name = "site/quotes"
        metric = "node_load1"
        below = -3.5
        lasts = "90 s"
        layer = "application"
        action = "alert"
        summary = "{{ $labels.nothing }} {{ or 100 % of \"it\" \\ 'too' : # - ü"
        why = """
        - a: {{ template }}
        # two lines"""
        remedy = "{{{{ }} |"
        [[rule]]
        name = "site/bits"
        metric = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
        bits = 9
        layer = "hardware"
        action = "drain"
        [[rule]]
        name = "site/huge"
        metric = "node_load1"
        above = 1e300
        layer = "hardware"
        action = "drain"
        [[rule]]
        name = "site/zero"
        metric = "node_load1"
        below = 0
        layer = "hardware"
        action = "drain"
    "#;
    let rules = Rules::built_in(Profile::Nvidia).with_own(own, "own.toml", &[]).expect("the rules are right");
    let options = RuleOptions { rules, ..RuleOptions::default() };
    folder.write("rules.yml", &rules_file(&options));
    folder.write("rules_test.yml", &tests_file(&options, "rules.yml"));
    folder.passes(&["check", "rules", "rules.yml"]);
    folder.passes(&["test", "rules", "rules_test.yml"]);
}

#[test]
fn every_alert_has_an_example_that_fires_and_one_that_does_not() {
    for alert in groups(&Rules::built_in(Profile::Nvidia)).iter().flat_map(|group| &group.alerts) {
        let fires = alert.examples.iter().filter(|example| !example.fires.is_empty()).count();
        assert!(fires > 0 && fires < alert.examples.len(), "{}", alert.name);
    }
}

#[test]
fn alerts_use_metrics_that_exist_and_names_are_unique() {
    let known = names::known();
    let mut seen = std::collections::BTreeSet::new();
    for alert in groups(&Rules::built_in(Profile::Nvidia)).iter().flat_map(|group| &group.alerts) {
        assert!(seen.insert(alert.name.clone()), "{} is there twice", alert.name);
        for name in names::metrics_in(&alert.expression) {
            let exists = known.contains(&name) || names::is_of_others(&name);
            assert!(exists, "{} uses {name}, which does not exist", alert.name);
        }
    }
}

#[test]
fn promtool_takes_the_scrape_configurations() {
    let folder = Folder::new("scrape");
    folder.write("rules.yml", &rules_file(&RuleOptions::default()));
    let labels = [("cluster".to_owned(), "a".to_owned())];
    folder.write("targets.json", &bedplate_prometheus::targets_file(&["n1".into()], &labels));
    let workspace = "https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write";
    let whole = Scrape {
        finding: NodeDiscovery::Static(vec!["n1".into(), "n2:9999".into(), "fe80::1".into()]),
        daemon: Some("head:7431".into()),
        serving: vec!["n1:8000".into()],
        training: vec!["n1:9400".into()],
        remote_write: Some((workspace.into(), "us-east-1".into())),
        rule_files: vec!["rules.yml".into()],
        alertmanager: Some("head:9093".into()),
        interval_s: 15,
    };
    let by_file = Scrape { finding: NodeDiscovery::File("targets.json".into()), ..Scrape::default() };
    let ec2 =
        NodeDiscovery::Ec2 { region: "us-east-1".into(), tag: "cluster name".into(), value: "big".into() };
    for scrape in [whole, by_file, Scrape { finding: ec2, ..Scrape::default() }] {
        // The token is made by the administrator; promtool wants to see the file.
        let text = scrape.to_yaml().replace("/etc/prometheus/bedplate.token", "rules.yml");
        folder.write("prometheus.yml", &text);
        folder.passes(&["check", "config", "prometheus.yml"]);
    }
}

#[test]
fn a_pod_monitor_is_made_for_kubernetes() {
    let finding = NodeDiscovery::Kubernetes { namespace: "monitoring".into() };
    let text = Scrape { finding, ..Scrape::default() }.to_yaml();
    assert_eq!(text.matches("kind: PodMonitor").count(), 3);
    assert!(text.contains("interval: 15s") && text.contains("namespace: \"monitoring\""));
}

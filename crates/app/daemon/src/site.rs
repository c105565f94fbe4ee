//! A site's own rules (docs/site.md): those of the scheduler, the patience of the control plane, and what is kept how long.

use bedplate_control::{ControlRules, Folders};
use bedplate_diag::Source;
use bedplate_diagnose::{Cause, FollowUp, Policy, PolicyRule, ProblemKind};
use bedplate_document::{DocumentError, Table};
use bedplate_gangs::{Settings, SettingsError, Span};
use bedplate_topology::Cluster;
use bedplate_units::{Bytes, Seconds};

use crate::Retention;

/// How a site wants its cluster run.
#[derive(Debug, Default)]
pub struct Site {
    pub settings: Settings,
    pub rules: ControlRules,
    pub retention: Retention,
    /// What follows from a diagnosis.
    pub policy: Policy,
}

impl Site {
    pub fn read(source: Source<'_>, cluster: &Cluster) -> Result<Self, SettingsError> {
        let (running, scheduling) = split(source.text);
        let settings = Settings::from_toml(&scheduling, source.name, cluster)?;
        let (rules, retention, policy) = read_running(Source::new(source.name, &running))?;
        Ok(Self { settings, rules, retention, policy })
    }
}

/// The tables that are not the scheduler's and everything else, each with empty lines for the other, so that places
/// stay true.
fn split(text: &str) -> (String, String) {
    let (mut patience, mut scheduling) = (String::new(), String::new());
    let mut is_patience = false;
    for line in text.lines() {
        if line.trim_start().starts_with('[') {
            let head = line.split('#').next().unwrap_or("").trim();
            is_patience = matches!(head, "[rules]" | "[retention]" | "[[diagnosis]]");
        }
        let (to, other) =
            if is_patience { (&mut patience, &mut scheduling) } else { (&mut scheduling, &mut patience) };
        to.push_str(line);
        to.push('\n');
        other.push('\n');
    }
    (patience, scheduling)
}

fn read_running(source: Source<'_>) -> Result<(ControlRules, Retention, Policy), DocumentError> {
    let file = Table::parse(source)?;
    let (mut found, mut kept) = (ControlRules::default(), Retention::default());
    if let Some(table) = file.table("rules")? {
        rules(&table, &mut found)?;
    }
    if let Some(table) = file.table("retention")? {
        retention(&table, &mut kept, &mut found.folders)?;
    }
    let rules = file.tables("diagnosis")?;
    let rules = rules.iter().map(policy_rule).collect::<Result<Vec<_>, _>>()?;
    file.finish()?;
    Ok((found, kept, Policy { rules }))
}

fn policy_rule(table: &Table) -> Result<PolicyRule, DocumentError> {
    let names =
        |key: &str| -> Result<Vec<String>, DocumentError> { Ok(table.optional(key)?.unwrap_or_default()) };
    let unknown =
        |key: &str, known: Vec<String>| table.bad_value(key, format!("it may be {}", known.join(", ")));
    let kinds = names("kind")?.iter().map(|name| ProblemKind::of_key(name)).collect::<Option<Vec<_>>>();
    let kinds = kinds.ok_or_else(|| {
        unknown("kind", ProblemKind::ALL.iter().map(|kind| kind.name().replace(' ', "-")).collect())
    })?;
    let cause = |name: &String| match Cause::of_class(name) {
        Cause::Unknown if name != "unknown" => None,
        cause => Some(cause),
    };
    let causes = names("cause")?.iter().map(cause).collect::<Option<Vec<_>>>();
    let causes = causes.ok_or_else(|| {
        let known = Cause::KNOWN.iter().chain(&[Cause::Unknown]);
        unknown("cause", known.map(|cause| cause.name().replace(' ', "-")).collect())
    })?;
    let then: String = table.required("then")?;
    let then = FollowUp::find(&then)
        .ok_or_else(|| unknown("then", FollowUp::ALL.iter().map(|(name, _)| (*name).to_owned()).collect()))?;
    let confidence: f64 = table.or("confidence", PolicyRule::USUAL_CONFIDENCE)?;
    if !(0.0..=1.0).contains(&confidence) {
        return Err(table.bad_value("confidence", "it must be from 0 to 1"));
    }
    table.finish()?;
    Ok(PolicyRule { kinds, causes, confidence, then })
}

fn retention(table: &Table, kept: &mut Retention, folders: &mut Folders) -> Result<(), DocumentError> {
    kept.age = span(table, "age")?.or(kept.age);
    kept.jobs = table.optional("jobs")?.or(kept.jobs);
    folders.age = span(table, "folders_age")?.unwrap_or(folders.age);
    folders.bytes = table.optional::<Bytes>("folders_size")?.map_or(folders.bytes, |size| size.get() as u64);
    table.finish()
}

fn rules(table: &Table, rules: &mut ControlRules) -> Result<(), DocumentError> {
    let spans = [
        ("heartbeat", &mut rules.heartbeat),
        ("silence", &mut rules.silence),
        ("closed_grace", &mut rules.closed_grace),
        ("rejoin", &mut rules.rejoin),
        ("loss_grace", &mut rules.loss_grace),
        ("prepare_within", &mut rules.prepare_within),
        ("overdue", &mut rules.overdue),
        ("flapping_window", &mut rules.blame.flapping_window),
    ];
    for (key, value) in spans {
        *value = span(table, key)?.unwrap_or(*value);
    }
    rules.blame.most_losses = table.or("most_losses", rules.blame.most_losses as u64)? as usize;
    if rules.heartbeat.0 == 0 || rules.silence.0 < 2 * rules.heartbeat.0 {
        return Err(
            table.bad_value("silence", "it must be at least twice the heartbeat, which must not be 0")
        );
    }
    table.finish()
}

fn span(table: &Table, key: &str) -> Result<Option<Span>, DocumentError> {
    Ok(table.optional::<Seconds>(key)?.map(|seconds| Span((seconds.get() * 1000.0).round() as u64)))
}

#[cfg(test)]
mod tests {
    use bedplate_catalog::Catalog;

    use super::*;

    fn site(text: &str) -> Result<Site, String> {
        let cluster = Cluster::from_spec("p5.48xlarge:4", &Catalog::builtin()).unwrap();
        Site::read(Source::new("site.toml", text), &cluster).map_err(|error| error.to_string())
    }

    #[test]
    fn a_site_has_the_rules_of_the_scheduler_and_of_patience() {
        let text = "[[partition]]\nname = \"batch\"\nlongest = \"2 days\"\n[rules] # of healing\nsilence = \"10s\"\n\
                    [weights]\nage = 5\n";
        let site = site(text).unwrap();
        assert_eq!(site.settings.partitions[0].name, "batch");
        assert_eq!(site.settings.weights.age, 5);
        assert_eq!(site.rules.silence, Span::seconds(10));
    }

    #[test]
    fn a_site_says_what_is_kept_how_long() {
        let text = "[retention]\nage = \"30 days\"\njobs = 5\nfolders_age = \"2h\"\nfolders_size = \"3 GB\"\n[rules]\n";
        let site = site(text).unwrap();
        assert_eq!(site.retention, Retention { age: Some(Span::days(30)), jobs: Some(5) });
        assert_eq!(site.rules.folders, Folders { age: Span::hours(2), bytes: 3_000_000_000 });
    }

    #[test]
    fn a_site_says_what_follows_from_a_diagnosis() {
        let text = "[[diagnosis]]\nkind = [\"slow-since\"]\ncause = [\"hardware\"]\nconfidence = 0.9\nthen = \"replace\"\n\
                    [weights]\nage = 5\n[[diagnosis]]\nthen = \"dump\"\n";
        let site = site(text).unwrap();
        let [first, second] = &site.policy.rules[..] else { panic!("two rules") };
        assert_eq!(
            (&first.kinds[..], &first.causes[..]),
            (&[ProblemKind::SlowSince][..], &[Cause::Hardware][..])
        );
        assert_eq!((first.confidence, first.then, second.then), (0.9, FollowUp::Replace, FollowUp::Dump));
        assert_eq!(site.settings.weights.age, 5);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("[[diagnosis]]\nthen = \"reboot\"\n", "nothing, tell, dump, restart, replace"),
            ("[[diagnosis]]\nkind = [\"slow\"]\nthen = \"tell\"\n", "slow-since"),
            ("[[diagnosis]]\ncause = [\"gremlins\"]\nthen = \"tell\"\n", "out-of-memory"),
            ("[rules]\nheartbeat = \"2s\"\nsilence = \"3s\"\n", "twice the heartbeat"),
            ("[rules]\nsilnce = \"3s\"\n", "silnce"),
            ("[rule]\n", "rule"),
            ("[retention]\njob = 3\n", "job"),
        ] {
            let error = site(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(site("").unwrap().rules, ControlRules::default());
    }
}

//! A site's own rules (docs/site.md): those of the scheduler, the patience of the control plane, and what is kept how long.

use bedplate_control::{ControlRules, Folders};
use bedplate_diag::Source;
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
}

impl Site {
    pub fn read(source: Source<'_>, cluster: &Cluster) -> Result<Self, SettingsError> {
        let (running, scheduling) = split(source.text);
        let settings = Settings::from_toml(&scheduling, source.name, cluster)?;
        let (rules, retention) = read_running(Source::new(source.name, &running))?;
        Ok(Self { settings, rules, retention })
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
            is_patience = matches!(head, "[rules]" | "[retention]");
        }
        let (to, other) =
            if is_patience { (&mut patience, &mut scheduling) } else { (&mut scheduling, &mut patience) };
        to.push_str(line);
        to.push('\n');
        other.push('\n');
    }
    (patience, scheduling)
}

fn read_running(source: Source<'_>) -> Result<(ControlRules, Retention), DocumentError> {
    let file = Table::parse(source)?;
    let (mut found, mut kept) = (ControlRules::default(), Retention::default());
    if let Some(table) = file.table("rules")? {
        rules(&table, &mut found)?;
    }
    if let Some(table) = file.table("retention")? {
        retention(&table, &mut kept, &mut found.folders)?;
    }
    file.finish()?;
    Ok((found, kept))
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
    fn mistakes_are_named() {
        for (text, why) in [
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

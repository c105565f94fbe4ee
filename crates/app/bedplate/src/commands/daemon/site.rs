//! A site's own rules: partitions, QOS, weights and patience, from a file (docs/local-cluster.md has every key).

use bedplate_control::Rules;
use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};
use bedplate_gangs::{Partition, Qos, QosId, Settings, Span};
use bedplate_topology::{Cluster, expand_hostlist};
use bedplate_units::Seconds;

use crate::files;
use crate::stop::Stop;

/// How a site wants its cluster run.
#[derive(Debug, Default)]
pub(super) struct Site {
    pub(super) settings: Settings,
    pub(super) rules: Rules,
}

pub(super) fn read(path: &str, cluster: &Cluster) -> Result<Site, Stop> {
    let text = files::read_text(path)?;
    Ok(parse(Source::new(path, &text), cluster)?)
}

fn parse(source: Source<'_>, cluster: &Cluster) -> Result<Site, DocumentError> {
    let file = Table::parse(source)?;
    let mut site = Site::default();
    let partitions = file.tables("partition")?;
    if !partitions.is_empty() {
        site.settings.partitions =
            partitions.iter().map(|table| partition(table, cluster)).collect::<Result<_, _>>()?;
    }
    let qos = file.tables("qos")?;
    if !qos.is_empty() {
        let names = qos.iter().map(|table| table.required("name")).collect::<Result<Vec<String>, _>>()?;
        site.settings.qos = qos.iter().map(|table| read_qos(table, &names)).collect::<Result<_, _>>()?;
    }
    if let Some(table) = file.table("weights")? {
        weights(&table, &mut site.settings)?;
    }
    if let Some(table) = file.table("rules")? {
        rules(&table, &mut site.rules)?;
    }
    file.finish()?;
    Ok(site)
}

fn partition(table: &Table, cluster: &Cluster) -> Result<Partition, DocumentError> {
    let mut partition = Partition::named(table.required::<String>("name")?);
    if let Some(nodes) = table.optional::<String>("nodes")? {
        let names = expand_hostlist(&nodes).map_err(|error| table.bad_value("nodes", error.to_string()))?;
        let find = |name: &String| {
            cluster
                .find_node(name)
                .ok_or_else(|| table.bad_value("nodes", format!("there is no node `{name}`")))
        };
        partition.nodes = Some(names.iter().map(find).collect::<Result<_, _>>()?);
    }
    partition.longest = span(table, "longest")?;
    partition.most_nodes = table.optional("most_nodes")?;
    partition.priority = table.or("priority", partition.priority)?;
    partition.tier = table.or("tier", u32::from(partition.tier))? as u16;
    table.finish()?;
    Ok(partition)
}

fn read_qos(table: &Table, names: &[String]) -> Result<Qos, DocumentError> {
    let mut qos = Qos::named(table.required::<String>("name")?);
    qos.priority = table.or("priority", qos.priority)?;
    qos.longest = span(table, "longest")?;
    qos.most_gpus_per_job = table.optional("most_gpus_per_job")?;
    qos.most_gpus_per_user = table.optional("most_gpus_per_user")?;
    qos.most_jobs_per_user = table.optional("most_jobs_per_user")?;
    qos.most_gpus = table.optional("most_gpus")?;
    let preempts: Vec<String> = table.or("preempts", Vec::new())?;
    let find = |name: &String| {
        let at = names.iter().position(|known| known == name);
        at.map(|at| QosId(at as u16))
            .ok_or_else(|| table.bad_value("preempts", format!("there is no QOS `{name}`")))
    };
    qos.preempts = preempts.iter().map(find).collect::<Result<_, _>>()?;
    table.finish()?;
    Ok(qos)
}

fn weights(table: &Table, settings: &mut Settings) -> Result<(), DocumentError> {
    let weights = &mut settings.weights;
    let read = |key: &str, value: &mut i64| -> Result<(), DocumentError> {
        *value = table.or(key, *value)?;
        Ok(())
    };
    read("age", &mut weights.age)?;
    read("expansion", &mut weights.expansion)?;
    read("fair_share", &mut weights.fair_share)?;
    read("qos", &mut weights.qos)?;
    read("job_size", &mut weights.job_size)?;
    read("partition", &mut weights.partition)?;
    weights.half_life = span(table, "half_life")?.unwrap_or(weights.half_life);
    weights.oldest = span(table, "oldest")?.unwrap_or(weights.oldest);
    weights.favours_small = table.or("favours_small", weights.favours_small)?;
    table.finish()
}

fn rules(table: &Table, rules: &mut Rules) -> Result<(), DocumentError> {
    let spans = [
        ("heartbeat", &mut rules.heartbeat),
        ("silence", &mut rules.silence),
        ("closed_grace", &mut rules.closed_grace),
        ("rejoin", &mut rules.rejoin),
        ("loss_grace", &mut rules.loss_grace),
        ("prepare_within", &mut rules.prepare_within),
        ("overdue", &mut rules.overdue),
        ("flapping_window", &mut rules.flapping_window),
    ];
    for (key, value) in spans {
        *value = span(table, key)?.unwrap_or(*value);
    }
    rules.most_losses = table.or("most_losses", rules.most_losses as u64)? as usize;
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

    fn site(text: &str) -> Result<Site, DocumentError> {
        let cluster = Cluster::from_spec("p5.48xlarge:4", &Catalog::builtin()).unwrap();
        parse(Source::new("site.toml", text), &cluster)
    }

    #[test]
    fn a_site_names_partitions_qos_weights_and_patience() {
        let site = site(
            "[[partition]]\nname = \"batch\"\nnodes = \"n[1-2]\"\nlongest = \"2 days\"\n[[partition]]\nname = \"high\"\ntier = 10\n\
             [[qos]]\nname = \"normal\"\n[[qos]]\nname = \"urgent\"\npriority = 1000\npreempts = [\"normal\"]\n\
             [weights]\nage = 5\n[rules]\nsilence = \"10s\"\n",
        )
        .unwrap();
        assert_eq!(site.settings.partitions.len(), 2);
        assert_eq!(site.settings.partitions[0].nodes.as_ref().unwrap().len(), 2);
        assert_eq!(site.settings.partitions[1].tier, 10);
        assert_eq!(site.settings.qos[1].preempts, [QosId(0)]);
        assert_eq!(site.settings.weights.age, 5);
        assert_eq!(site.rules.silence, Span::seconds(10));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("[[partition]]\nname = \"x\"\nnodes = \"n9\"\n", "there is no node `n9`"),
            ("[[qos]]\nname = \"x\"\npreempts = [\"y\"]\n", "there is no QOS `y`"),
            ("[rules]\nheartbeat = \"2s\"\nsilence = \"3s\"\n", "twice the heartbeat"),
            ("[rule]\n", "rule"),
        ] {
            let error = site(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(site("").unwrap().rules, Rules::default());
    }
}

//! The table `[kubernetes]` of a job file.

use bedplate_document::{Readable, Table};
use bedplate_units::Bytes;

use super::read::{Read, list, plain_map};
use crate::kubernetes::{PodSettings, SecretKey, Toleration, Volume, VolumeSource};

pub(super) fn settings(table: &Table) -> Read<PodSettings> {
    let Some(table) = table.table("kubernetes")? else { return Ok(PodSettings::default()) };
    let table = table.titled("kubernetes");
    let settings = PodSettings {
        image: table.optional("image")?,
        pull_secrets: list(&table, "pull_secrets")?,
        namespace: table.optional("namespace")?,
        service_account: table.optional("service_account")?,
        queue: table.optional("queue")?,
        scheduler: table.optional("scheduler")?,
        priority_class: table.optional("priority_class")?,
        gpu_resource: table.optional("gpu_resource")?,
        resources: counts(&table)?,
        node_labels: plain_map(&table, "node_labels")?,
        secret_environment: secret_environment(&table)?,
        tolerations: each(&table, "toleration", toleration)?,
        volumes: each(&table, "volume", volume)?,
    };
    table.finish()?;
    Ok(settings)
}

fn each<T>(table: &Table, key: &str, read: impl Fn(&Table) -> Read<T>) -> Read<Vec<T>> {
    let one = |table: Table| {
        let value = read(&table)?;
        table.finish()?;
        Ok(value)
    };
    table.tables(key)?.into_iter().map(one).collect()
}

fn counts(table: &Table) -> Read<std::collections::BTreeMap<String, u32>> {
    let Some(table) = table.table("resources")? else { return Ok(Default::default()) };
    table.keys().map(|key| Ok((key.to_owned(), table.required(key)?))).collect()
}

fn secret_environment(table: &Table) -> Read<std::collections::BTreeMap<String, SecretKey>> {
    let Some(table) = table.table("secret_environment")? else { return Ok(Default::default()) };
    let one = |key: &str| {
        let text: String = table.required(key)?;
        let secret =
            text.parse().map_err(|error: crate::NotationError| table.bad_value(key, error.to_string()))?;
        Ok((key.to_owned(), secret))
    };
    table.keys().map(one).collect()
}

fn toleration(table: &Table) -> Read<Toleration> {
    Ok(Toleration {
        key: table.required("key")?,
        value: table.optional("value")?,
        effect: table.optional("effect")?,
    })
}

fn volume(table: &Table) -> Read<Volume> {
    Ok(Volume {
        mount: table.required("mount")?,
        source: volume_source(table)?,
        sub_path: table.optional("sub_path")?,
        is_read_only: table.or("read_only", false)?,
    })
}

/// Exactly one of the keys that say where a volume comes from.
fn volume_source(table: &Table) -> Read<VolumeSource> {
    fn named<T: Readable>(
        table: &Table,
        key: &str,
        make: fn(T) -> VolumeSource,
    ) -> Read<Option<VolumeSource>> {
        Ok(table.optional::<T>(key)?.map(make))
    }
    let sources = [
        named(table, "claim", VolumeSource::Claim)?,
        named(table, "host_path", VolumeSource::HostPath)?,
        named(table, "secret", VolumeSource::Secret)?,
        named(table, "config_map", VolumeSource::ConfigMap)?,
        named(table, "memory", |size: Bytes| VolumeSource::Memory(size))?,
        table.or("empty", false)?.then_some(VolumeSource::Empty),
    ];
    let mut found = sources.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(source), None) => Ok(source),
        _ => Err(table.bad_value(
            "mount",
            "say where it comes from by exactly one of `claim`, `host_path`, `secret`, `config_map`, `memory` and `empty`",
        )),
    }
}

//! The table `[kubernetes]` of a job file, from what it says.

use serde_json::{Value, json};

use super::write::{Object, plain_map, put, put_list, put_object, put_some, put_unless};
use crate::kubernetes::{PodSettings, Toleration, Volume, VolumeSource};
use crate::notation::written_size;

pub(super) fn settings(settings: &PodSettings) -> Object {
    let mut object = Object::new();
    put_some(&mut object, "image", settings.image.as_deref());
    put_list(&mut object, "pull_secrets", &settings.pull_secrets);
    put_some(&mut object, "namespace", settings.namespace.as_deref());
    put_some(&mut object, "service_account", settings.service_account.as_deref());
    put_some(&mut object, "queue", settings.queue.as_deref());
    put_some(&mut object, "scheduler", settings.scheduler.as_deref());
    put_some(&mut object, "priority_class", settings.priority_class.as_deref());
    put_some(&mut object, "gpu_resource", settings.gpu_resource.as_deref());
    let counts = settings.resources.iter().map(|(name, count)| (name.clone(), json!(count)));
    put_object(&mut object, "resources", counts.collect());
    put_object(&mut object, "node_labels", plain_map(&settings.node_labels));
    let secrets = settings.secret_environment.iter();
    let secrets = secrets.map(|(name, secret)| (name.clone(), json!(secret.to_string())));
    put_object(&mut object, "secret_environment", secrets.collect());
    put_tables(&mut object, "toleration", settings.tolerations.iter().map(toleration));
    put_tables(&mut object, "volume", settings.volumes.iter().map(volume));
    object
}

fn put_tables(object: &mut Object, key: &str, tables: impl Iterator<Item = Object>) {
    let tables: Vec<Value> = tables.map(Value::Object).collect();
    if !tables.is_empty() {
        put(object, key, Value::Array(tables));
    }
}

fn toleration(toleration: &Toleration) -> Object {
    let mut object = Object::new();
    put(&mut object, "key", toleration.key.as_str());
    put_some(&mut object, "value", toleration.value.as_deref());
    put_some(&mut object, "effect", toleration.effect.as_deref());
    object
}

fn volume(volume: &Volume) -> Object {
    let mut object = Object::new();
    put(&mut object, "mount", volume.mount.as_str());
    match &volume.source {
        VolumeSource::Claim(name) => put(&mut object, "claim", name.as_str()),
        VolumeSource::HostPath(path) => put(&mut object, "host_path", path.as_str()),
        VolumeSource::Secret(name) => put(&mut object, "secret", name.as_str()),
        VolumeSource::ConfigMap(name) => put(&mut object, "config_map", name.as_str()),
        VolumeSource::Memory(size) => put(&mut object, "memory", written_size(*size)),
        VolumeSource::Empty => put(&mut object, "empty", true),
    }
    put_some(&mut object, "sub_path", volume.sub_path.as_deref());
    put_unless(&mut object, "read_only", volume.is_read_only, false);
    object
}

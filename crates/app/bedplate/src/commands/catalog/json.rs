//! Catalog entries as JSON: numbers in base units, the unit in the key, the source of every figure.

use bedplate_catalog::{
    Accelerator, Catalog, CollectiveTimes, Evidence, Fabric, FormatRates, Instance, MeasuredRates, Prices,
    Purchase, StorageClass, UltraServer,
};
use bedplate_units::Bytes;
use serde_json::{Map, Value, json};

pub(super) fn accelerator(entry: &Accelerator) -> Value {
    let peaks = entry.peaks.by_format().into_iter();
    let peaks: Map<String, Value> =
        peaks.filter_map(|(format, peak)| Some((format.to_owned(), json!(peak?.get())))).collect();
    json!({
        "kind": "accelerator",
        "name": entry.name,
        "title": entry.title,
        "aliases": entry.aliases,
        "vendor": entry.vendor,
        "generation": entry.generation,
        "peak_flops": peaks,
        "memory_bytes": whole(entry.memory),
        "memory_usable_bytes": entry.memory_usable.map(whole),
        "memory_kind": entry.memory_kind,
        "memory_bandwidth_bytes_per_s": entry.memory_bandwidth.map(|rate| rate.get()),
        "multiprocessors": entry.multiprocessors,
        "compute_capability": entry.compute_capability,
        "power_w": entry.power.map(|power| power.get()),
        "scale_up": entry.scale_up,
        "host_link": entry.host_link,
        "measured": entry.measured.as_ref().map(measured),
        "collectives": entry.collectives.iter().map(collective).collect::<Vec<_>>(),
        "notes": entry.notes,
        "evidence": evidence(&entry.evidence),
    })
}

fn collective(times: &CollectiveTimes) -> Value {
    let points = times.curve.points();
    let (sizes, seconds): (Vec<f64>, Vec<f64>) = points.map(|(size, time)| (size.get(), time.get())).unzip();
    json!({ "op": times.operation, "ranks": times.ranks, "bytes": sizes, "seconds": seconds })
}

fn measured(rates: &MeasuredRates) -> Value {
    let format = |rates: FormatRates| {
        let mut object = Map::new();
        for (key, rate) in rates.flop_rates() {
            object.insert(format!("{key}_flops"), json!(rate.get()));
        }
        for (key, rate) in rates.bandwidths() {
            object.insert(format!("{key}_bytes_per_s"), json!(rate.get()));
        }
        object.insert("half_size".into(), json!(rates.half_size));
        object.insert("half_keys".into(), json!(rates.half_keys));
        Value::Object(object)
    };
    json!({
        "threads": rates.threads,
        "fp32": rates.fp32.map(format),
        "bf16": rates.bf16.map(format),
        "copy_bytes_per_s": rates.copy.get(),
        "cache_bytes": whole(rates.cache),
        "losses_bytes_per_s": rates.losses.get(),
        "optimizer_bytes_per_s": rates.optimizer.get(),
        "operator_s": rates.operator.get(),
    })
}

pub(super) fn instance(entry: &Instance, catalog: &Catalog) -> Value {
    let accelerator = catalog.accelerator_of(entry);
    json!({
        "kind": "instance",
        "name": entry.name,
        "title": entry.title,
        "provider": entry.provider,
        "accelerator": entry.accelerator,
        "accelerators": entry.accelerators,
        "memory_per_accelerator_bytes": whole(accelerator.memory),
        "accelerator_memory_bytes": whole(catalog.total_memory(entry)),
        "vcpus": entry.vcpus,
        "host_memory_bytes": entry.host_memory.map(whole),
        "scale_up": accelerator.scale_up,
        "scale_up_domain": entry.scale_up_domain,
        "scale_up_bytes_per_s": entry.scale_up_bandwidth.map(|rate| rate.get()),
        "scale_out": entry.scale_out,
        "scale_out_bytes_per_s": entry.scale_out_bandwidth.map(|rate| rate.get()),
        "scale_out_cards": entry.scale_out_cards,
        "host_link": entry.host_link.as_ref().or(accelerator.host_link.as_ref()),
        "local_storage": entry.local_storage.as_ref().map(|disks| json!({
            "class": disks.class,
            "devices": disks.devices,
            "device_bytes": whole(disks.device_size),
        })),
        "ultracluster": entry.ultracluster,
        "prices": prices(&entry.prices),
        "notes": entry.notes,
        "evidence": evidence(&entry.evidence),
    })
}

pub(super) fn ultraserver(entry: &UltraServer) -> Value {
    json!({
        "kind": "ultraserver",
        "name": entry.name,
        "title": entry.title,
        "instance": entry.instance,
        "instances": entry.instances,
        "accelerators": entry.accelerators,
        "accelerator_memory_bytes": entry.accelerator_memory.map(whole),
        "scale_up_bytes_per_s": entry.scale_up_bandwidth.map(|rate| rate.get()),
        "scale_out": entry.scale_out,
        "scale_out_bytes_per_s": entry.scale_out_bandwidth.map(|rate| rate.get()),
        "prices": prices(&entry.prices),
        "notes": entry.notes,
        "evidence": evidence(&entry.evidence),
    })
}

pub(super) fn fabric(entry: &Fabric) -> Value {
    json!({
        "kind": "fabric",
        "name": entry.name,
        "title": entry.title,
        "use": entry.kind.name(),
        "family": entry.family,
        "generation": entry.generation,
        "per_accelerator_bytes_per_s": entry.per_accelerator.map(|rate| rate.get()),
        "directions": entry.directions,
        "per_port_bytes_per_s": entry.per_port.map(|rate| rate.get()),
        "latency_s": entry.latency.map(|time| time.get()),
        "protocol": entry.protocol,
        "notes": entry.notes,
        "evidence": evidence(&entry.evidence),
    })
}

pub(super) fn storage(entry: &StorageClass) -> Value {
    let price = |price: &bedplate_catalog::StoragePrice| {
        json!({
            "per_gb_month_usd": price.per_gb_month.get(),
            "region": price.region,
            "date": price.date,
            "source": price.source,
            "note": price.note,
            "doubtful": price.doubtful,
        })
    };
    json!({
        "kind": "storage",
        "name": entry.name,
        "title": entry.title,
        "tier": entry.tier.name(),
        "is_durable": entry.is_durable,
        "is_posix": entry.is_posix,
        "has_gpu_direct": entry.has_gpu_direct,
        "latency_s": entry.latency.map(|time| time.get()),
        "throughput_per_tib_bytes_per_s": entry.throughput_per_tib.map(|rate| rate.get()),
        "throughput_per_client_bytes_per_s": entry.throughput_per_client.map(|rate| rate.get()),
        "throughput_per_volume_bytes_per_s": entry.throughput_per_volume.map(|rate| rate.get()),
        "iops": entry.iops,
        "max_object_bytes": entry.max_object.map(whole),
        "cannot": entry.cannot,
        "prices": entry.prices.iter().map(price).collect::<Vec<_>>(),
        "notes": entry.notes,
        "evidence": evidence(&entry.evidence),
    })
}

/// A size as a whole number of bytes.
fn whole(size: Bytes) -> u64 {
    size.get().round() as u64
}

/// One list per purchase option; an empty list means unknown.
fn prices(prices: &Prices) -> Value {
    let price = |price: &bedplate_catalog::Price| {
        json!({
            "per_hour_usd": price.per_hour.hourly().get(),
            "region": price.region,
            "date": price.date,
            "source": price.source,
            "note": price.note,
        })
    };
    let by_kind = Purchase::ALL.into_iter().map(|(name, purchase)| {
        (name.replace('-', "_"), Value::Array(prices.of(purchase).iter().map(price).collect()))
    });
    Value::Object(by_kind.collect())
}

fn evidence(evidence: &Evidence) -> Value {
    let also = |also: &bedplate_catalog::Disagreement| json!({ "field": also.field, "value": also.value, "source": also.source, "note": also.note });
    json!({
        "source": evidence.source,
        "by_field": evidence.by_field,
        "also": evidence.also.iter().map(also).collect::<Vec<_>>(),
    })
}

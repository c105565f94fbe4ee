//! What a log says about a run: which transports were used, what NCCL fell back from, and why.

use crate::check::{Check, Stack};
use crate::cost::FlawPricing;

use super::log::{NcclLog, Plugin};

/// What is judged good or bad about a log. `price` says what a flaw costs, where the instance is known.
pub fn judge_log(log: &NcclLog, price: Option<&FlawPricing>) -> Vec<Check> {
    if log.lines == 0 {
        return vec![
            Check::fail("nccl/no-lines", Stack::Communication, "no line of NCCL was found")
                .because("without them nothing can be said about the run")
                .fixed_by("run the job with NCCL_DEBUG=INFO, and with NCCL_DEBUG_SUBSYS=INIT,NET,ENV,GRAPH,TUNING for more"),
        ];
    }
    let mut checks = vec![between_nodes(log, price)];
    checks.extend(gpu_direct(log, price));
    checks.extend(provider(log, price));
    checks.push(within_nodes(log, price));
    checks.extend(by_network_within_host(log));
    checks.extend(channels(log));
    checks.extend(nvls(log));
    checks.extend(unfinished(log));
    checks.extend(versions(log));
    checks.extend(settings(log));
    checks.extend(warnings(log));
    checks
}

fn pass(rule: &str, found: String) -> Check {
    Check::pass(rule, Stack::Communication, found)
}

fn warn(rule: &str, found: String) -> Check {
    Check::warn(rule, Stack::Communication, found)
}

fn fail(rule: &str, found: String) -> Check {
    Check::fail(rule, Stack::Communication, found)
}

fn is_socket(name: &str) -> bool {
    name.eq_ignore_ascii_case("socket")
}

/// The network that really carried something, or that was chosen where connections are not logged.
fn networks_used(log: &NcclLog) -> Vec<&str> {
    let carried: Vec<&str> = log.network_connections.keys().map(String::as_str).collect();
    if !carried.is_empty() {
        return carried;
    }
    if log.nodes > 1 { log.networks.iter().map(String::as_str).collect() } else { Vec::new() }
}

fn between_nodes(log: &NcclLog, price: Option<&FlawPricing>) -> Check {
    const RULE: &str = "nccl/network";
    let used = networks_used(log);
    if used.is_empty() {
        let chosen: Vec<&str> = log.networks.iter().map(String::as_str).collect();
        let chosen = if chosen.is_empty() { "none".to_owned() } else { chosen.join(", ") };
        return pass(RULE, format!("no traffic between nodes; the network would be {chosen}"));
    }
    if !used.iter().any(|name| is_socket(name)) {
        return pass(RULE, format!("traffic between nodes goes by {}", used.join(", ")));
    }
    let cause = socket_cause(log);
    let mut check = fail(RULE, format!("fell back to sockets: {}", cause.told))
        .because("TCP goes through the kernel and the host's memory: a fraction of the network's bandwidth, and processor time")
        .costing(price.and_then(FlawPricing::without_rdma))
        .fixed_by(cause.fix);
    if let Some(line) = cause.line {
        check = check.seen_in(line);
    }
    check
}

struct Cause {
    told: String,
    fix: &'static str,
    line: Option<String>,
}

/// Why sockets: what was asked for first, then what the plugin said, then what was not there.
fn socket_cause(log: &NcclLog) -> Cause {
    let setting = |name: &str| log.settings.get(name).map(|value| format!("{name}={value}"));
    let asked = setting("NCCL_NET").filter(|it| it.to_lowercase().ends_with("socket"));
    if let Some(asked) = asked {
        let fix = "unset NCCL_NET, or name the plugin's network";
        return Cause { told: format!("{asked} asks for them"), fix, line: None };
    }
    if let Some(failure) = &log.ofi.failure {
        let fix = "install libfabric and the plugin of one EFA installer, check `fi_info -p efa`, and that the container has /dev/infiniband";
        return Cause { told: "the plugin gave up".to_owned(), fix, line: Some(failure.clone()) };
    }
    if let Plugin::Unusable(told) = &log.plugin {
        let fix = "install a plugin built for this NCCL, and put the libraries it needs on LD_LIBRARY_PATH (libfabric is in /opt/amazon/efa/lib)";
        return Cause { told: unusable(told), fix, line: Some(told.clone()) };
    }
    if let Some(disabled) = setting("NCCL_IB_DISABLE").filter(|it| it.ends_with("=1")) {
        return Cause {
            told: format!("{disabled} forbids InfiniBand"),
            fix: "unset NCCL_IB_DISABLE",
            line: None,
        };
    }
    if log.found_infiniband {
        let told = "InfiniBand was found and not chosen; NCCL_NET=Socket looks like this".to_owned();
        return Cause { told, fix: "unset NCCL_NET, or name the network that you want", line: None };
    }
    if let Plugin::Missing(told) = &log.plugin {
        let fix = "install aws-ofi-nccl and put its folder on LD_LIBRARY_PATH, or set NCCL_NET_PLUGIN to its path; on InfiniBand check `ibv_devinfo`";
        let why = match log.no_infiniband {
            Some(_) => "plugin not found",
            None => "plugin not found, and InfiniBand was not tried; NCCL_NET=Socket looks like this",
        };
        return Cause { told: why.to_owned(), fix, line: Some(told.clone()) };
    }
    if let Some(told) = &log.no_infiniband {
        let fix = "check `ibv_devinfo`, the driver (rdma-core, MLNX_OFED), and that the container has /dev/infiniband";
        return Cause { told: "no InfiniBand device found".to_owned(), fix, line: Some(told.clone()) };
    }
    let fix = "run with NCCL_DEBUG_SUBSYS=INIT,NET,ENV; NCCL says there what it looked for";
    Cause { told: "the log does not say why".to_owned(), fix, line: None }
}

/// What keeps a plugin that was found from being used.
fn unusable(told: &str) -> String {
    if let Some((before, _)) = told.split_once(": cannot open shared object file") {
        let library = before.split_whitespace().next_back().unwrap_or("a library");
        return format!("the plugin needs {library}, which cannot be opened");
    }
    match told.contains("symbol (") {
        true => "the plugin is too old for this NCCL".to_owned(),
        false => "the plugin cannot be loaded".to_owned(),
    }
}

fn gpu_direct(log: &NcclLog, price: Option<&FlawPricing>) -> Option<Check> {
    const RULE: &str = "nccl/gpu-direct";
    let (direct, staged) = (log.transport.network_gpu_direct, log.transport.network_staged);
    let is_rdma = networks_used(log).iter().any(|name| !is_socket(name));
    if !is_rdma || direct + staged == 0 {
        return None;
    }
    if staged == 0 {
        return Some(pass(RULE, format!("all {direct} connections by the network use GPUDirect RDMA")));
    }
    let (cause, fix) = gpu_direct_cause(log);
    Some(
        fail(
            RULE,
            format!(
                "{staged} of {} connections by the network copy through the host: {cause}",
                direct + staged
            ),
        )
        .because("without GPUDirect RDMA every byte crosses PCIe and the host's memory twice")
        .costing(price.and_then(FlawPricing::without_gpu_direct))
        .fixed_by(fix),
    )
}

fn gpu_direct_cause(log: &NcclLog) -> (String, &'static str) {
    for name in ["NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE", "FI_EFA_USE_DEVICE_RDMA"] {
        if let Some(value) = log.settings.get(name) {
            return (
                format!("{name}={value} is set"),
                "unset it, or set NCCL_NET_GDR_LEVEL=SYS to allow all paths",
            );
        }
    }
    if let Some((distance, limit)) = log.gpu_direct_distance {
        let told = format!("GPU and card are too far apart (distance {distance}, limit {limit})");
        return (
            told,
            "check the PCIe topology with `nvidia-smi topo -m`; in a virtual machine give NCCL the topology file of the instance",
        );
    }
    if log.gpu_direct_refused > 0 {
        return (
            "the card or the driver does not offer it".to_owned(),
            "load nvidia-peermem (or use DMA-BUF with the open kernel modules), and gdrdrv",
        );
    }
    ("the log does not say why".to_owned(), "run with NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV")
}

fn provider(log: &NcclLog, price: Option<&FlawPricing>) -> Vec<Check> {
    const RULE: &str = "nccl/provider";
    let mut checks = Vec::new();
    let Some(provider) = &log.ofi.provider else { return checks };
    let plugin = log.ofi.version.as_deref().unwrap_or("unknown");
    if provider.starts_with("efa") {
        checks.push(pass(RULE, format!("aws-ofi-nccl {plugin} uses the provider {provider}")));
    } else {
        checks.push(
            fail(RULE, format!("the plugin uses libfabric's provider {provider}, not efa"))
                .because("any other provider sends through sockets")
                .costing(price.and_then(FlawPricing::without_rdma))
                .fixed_by("unset FI_PROVIDER, check that `fi_info -p efa` lists a card for each EFA device, and that the driver efa is loaded"),
        );
    }
    let expected = price.and_then(FlawPricing::cards);
    if let (Some(cards), Some(expected)) = (log.ofi.cards, expected)
        && cards < expected
    {
        checks.push(
            fail("nccl/cards", format!("a process found {cards} network cards of {expected}"))
                .because("the cards that are missing carry nothing; bandwidth between nodes falls in proportion")
                .costing(price.and_then(|price| price.with_cards(cards)))
                .fixed_by("attach all EFA interfaces when launching the instance, and give the container all of /dev/infiniband"),
        );
    }
    checks
}

fn within_nodes(log: &NcclLog, price: Option<&FlawPricing>) -> Check {
    const RULE: &str = "nccl/within-node";
    let (peer, host) = (log.transport.peer_to_peer, log.transport.shared_memory);
    if host == 0 {
        let told = if peer == 0 {
            "no connections within a node are logged".to_owned()
        } else {
            format!("all {peer} connections within a node go GPU to GPU")
        };
        return pass(RULE, told);
    }
    let (cause, fix) = shared_memory_cause(log);
    let found =
        format!("{host} of {} connections within a node go through the host's memory: {cause}", host + peer);
    fail(RULE, found)
        .because("NVLink is ten to twenty times as fast as the way through PCIe and the host's memory")
        .costing(price.and_then(FlawPricing::without_nvlink))
        .fixed_by(fix)
}

fn shared_memory_cause(log: &NcclLog) -> (String, &'static str) {
    for name in ["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"] {
        if let Some(value) = log.settings.get(name).filter(|value| *value != "0") {
            return (format!("{name}={value} is set"), "unset it");
        }
    }
    if let Some(told) = &log.peer_to_peer_off {
        return (
            told.clone(),
            "check `nvidia-smi topo -p2p r` and the fabric manager; disable ACS and the IOMMU for PCIe; a container needs all GPUs visible",
        );
    }
    ("the log does not say why".to_owned(), "check `nvidia-smi topo -m` and that the fabric manager runs")
}

fn by_network_within_host(log: &NcclLog) -> Option<Check> {
    let count = log.network_within_host;
    if count == 0 {
        return None;
    }
    let setting = ["NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE"].iter().find_map(|name| {
        log.settings.get(*name).filter(|value| *value != "0").map(|value| format!("{name}={value} is set"))
    });
    // Rail-optimised rings cross the network at the edges of a node, never inside it; containers with one GPU each do.
    let cause = setting.unwrap_or_else(|| "perhaps each rank runs in a container of its own".to_owned());
    Some(
        warn("nccl/network-within-node", format!("{count} connections between ranks of one host go by the network: {cause}"))
            .because("GPUs of one node should reach each other by NVLink")
            .fixed_by("give ranks of a node one IPC namespace (`--ipc=host`) and all GPUs, and unset NCCL_P2P_DISABLE and NCCL_SHM_DISABLE"),
    )
}

/// Two channels cannot fill one NVLink, let alone eight network cards.
fn channels(log: &NcclLog) -> Option<Check> {
    let count = log.collective_channels?;
    let nvls = log.nvls_channels.unwrap_or(0);
    let told = format!("{count} channels for collectives, {nvls} for NVLS");
    if log.ranks < 2 || count > 2 {
        return Some(pass("nccl/channels", told));
    }
    let setting = log.settings.iter().find(|(name, _)| name.contains("CHANNELS") || name.contains("CTAS"));
    let cause = setting.map_or(String::new(), |(name, value)| format!(": {name}={value} is set"));
    Some(
        warn("nccl/channels", format!("only {count} channels for collectives{cause}"))
            .because("each channel is one thread block and one stream of data; two cannot fill the links")
            .fixed_by("unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS; without them few channels mean that NCCL saw slow links: run `bedplate doctor` on the node"),
    )
}

fn nvls(log: &NcclLog) -> Option<Check> {
    let is_off = log.settings.get("NCCL_NVLS_ENABLE").is_some_and(|value| value == "0");
    if !log.nvls_is_missing && !is_off {
        return None;
    }
    if is_off {
        let check = warn("nccl/nvls", "NCCL_NVLS_ENABLE=0 turns NVLink SHARP off".to_owned());
        return Some(check.because("on NVSwitch systems of Hopper and later the switch adds up numbers, and all-reduce takes about half the traffic").fixed_by("unset NCCL_NVLS_ENABLE"));
    }
    let check = pass(
        "nccl/nvls",
        "NVLink SHARP is not available; normal before Hopper and without NVSwitch".to_owned(),
    );
    Some(check)
}

fn unfinished(log: &NcclLog) -> Option<Check> {
    if log.unfinished.is_empty() {
        return None;
    }
    let shown: Vec<String> = log.unfinished.iter().take(16).map(u32::to_string).collect();
    let more = if log.unfinished.len() > 16 {
        format!(" and {} more", log.unfinished.len() - 16)
    } else {
        String::new()
    };
    Some(
        fail("nccl/initialisation", format!("a communicator was begun and not finished on rank {}{more}", shown.join(", ")))
            .because("a rank that never arrives keeps all others waiting")
            .fixed_by("look at what the ranks that are not listed wrote last; check NCCL_SOCKET_IFNAME and firewalls between the nodes"),
    )
}

fn versions(log: &NcclLog) -> Option<Check> {
    let all: Vec<&str> = log.versions.iter().map(String::as_str).collect();
    match all.len() {
        0 => None,
        1 => Some(pass("nccl/version", format!("NCCL {}", all[0]))),
        _ => Some(
            fail("nccl/version", format!("ranks use different versions of NCCL: {}", all.join(", ")))
                .because("NCCL refuses to connect different versions, or behaves in undefined ways")
                .fixed_by("use one container image, or one environment, on all nodes"),
        ),
    }
}

/// Settings that pin what NCCL would choose better.
fn settings(log: &NcclLog) -> Vec<Check> {
    let harmful = log.settings.iter().filter_map(|(name, value)| crate::environment::remark(name, value));
    harmful.map(|remark| remark.check(Stack::Communication)).collect()
}

fn warnings(log: &NcclLog) -> Option<Check> {
    let first = log.warnings.first()?;
    let mut check = warn("nccl/warnings", format!("NCCL warned {} times", log.warnings.len()))
        .because("NCCL warns of what makes a call fail or of what it had to work around")
        .fixed_by("read the warnings in the order in which they came");
    for line in log.warnings.iter().take(5) {
        check = check.seen_in(line.clone());
    }
    (!first.is_empty()).then_some(check)
}

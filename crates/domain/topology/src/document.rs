//! `cluster.toml`: a cluster as people write it, and as Bedplate writes it without loss.
//!
//! ```toml
//! name = "hall-3"                   # optional; default "cluster"
//!
//! [[group]]                         # nodes of one kind, in order
//! instance = "p5.48xlarge"          # a catalog instance; or …
//! # ultraserver = "u-p6e-gb200x72"  # … an UltraServer of the catalog: one NVLink domain each; or …
//! # kind = "h100-x8"                # … a [[kind]] of this file
//! count = 64                        # instances or UltraServers; may be left out where `nodes` says it
//! nodes = "n[001-064]"              # names in Slurm's notation; n1, n2, … where left out
//! features = ["static", "efa"]      # optional: labels that the orchestrator gives these nodes
//! reported_memory = "1.97 TiB"      # optional, not for `kind`: the memory that the operating system sees
//! # part_of = "u-trn2x64"           # optional, for `instance`: nodes of such UltraServers, joined by [[domain]]
//!
//! [fabric]                          # a regular tree over all nodes, in order
//! nodes_per_leaf = 16
//! leaves_per_spine = 2              # optional: without it one spine joins all leaves
//! spines_per_core = 2               # optional: without it one core switch joins all spines
//! oversubscription = [1.0, 2.0]     # of leaf uplinks, of spine uplinks, …; 1 where left out
//!
//! [[switch]]                        # or the tree switch by switch, instead of the three lines above
//! name = "leaf1"
//! parent = "spine1"                 # left out for a root
//! nodes = "n[001-016]"              # left out for a switch that has only switches below it
//! oversubscription = 2.0            # downlink over uplink bandwidth, at least 1; else by level as in [fabric]
//!
//! [[domain]]                        # a scale-up domain over several nodes, such as an NVLink rack
//! name = "rack-1"
//! nodes = "n[001-018]"
//!
//! [[storage]]                       # storage that all nodes reach
//! class = "fsx-lustre-persistent-250"   # a storage class of the catalog
//! capacity = "1.2 PB"
//!
//! [[health]]                        # nodes not named here are healthy
//! nodes = "n[003-004]"
//! state = "down"                    # healthy, degraded, draining, drained, down, maintenance
//! reason = "XID 79"                 # optional
//! failed_gpus = [3]                 # optional: numbers within the node, from 0
//!
//! [[kind]]                          # machines that are not in the catalog; all but the name is optional
//! name = "h100-x8"
//! accelerator = "h100"              # from the catalog
//! domains = [4, 4]                  # GPUs of each scale-up domain; [8] is one domain of eight
//! scale_up_bandwidth = "450 GB/s"   # per GPU, one way
//! scale_out = "infiniband-ndr"      # a fabric of the catalog
//! scale_out_bandwidth = "400 GB/s"  # per node, one way
//! network_cards = 8
//! vcpus = 192
//! memory = "2 TB"
//! local_storage = { class = "nvme-local", devices = 8, device_size = "3.84 TB" }
//! ```
//!
//! Without `[fabric]` sizes and without `[[switch]]` the cluster is flat: one non-blocking fabric. Machines of
//! your own are better kept in a catalog overlay, which has room for prices and sources; `[[kind]]`
//! exists so that a file can stand alone. Children of a switch keep the order in which they are written,
//! and so do nodes below a switch. Unknown keys are refused.

mod read;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;

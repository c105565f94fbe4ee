//! How ranks find each other: who this process is, where rank 0 listens, and what all of them know and strangers do not.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_host::open_regular;

use crate::JoinError;
use crate::choice::AlgorithmTable;
use crate::handshake::{Secret, random_text};

/// What a rank must know to join its world.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    pub rank: u32,
    pub world: u32,
    /// Where rank 0 listens and the others connect: a name or an address, IPv4 or IPv6.
    pub address: String,
    pub port: u16,
    pub secret: Secret,
    /// Counts the worlds that ranks have made one after the other.
    pub epoch: u64,
}

/// What may be set for a world.
#[derive(Debug, Clone)]
pub struct WorldOptions {
    /// How long all ranks have to arrive.
    pub join: Duration,
    /// A rank that is silent for this long is given up. Of rank 0, used by all: each must speak often enough for the others.
    pub deadline: Duration,
    /// How long a call waits for ranks that live but do not make it.
    pub patience: Duration,
    /// Connections between two ranks on different hosts. Of rank 0, used by all.
    pub streams: u32,
    pub transport: Transport,
    pub encryption: Encryption,
    /// The port at which peers reach this rank, where it is not the one that it listens on: a forwarded port, or a relay.
    pub reached_at: Option<u16>,
    /// Of rank 0, used by all.
    pub table: AlgorithmTable,
    /// How many calls the flight recorder keeps.
    pub recorded: usize,
    /// Where the flight recorder writes on faults and stalls.
    pub flight: Option<PathBuf>,
}

/// What ranks use to reach each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory on a host, TCP between hosts.
    #[default]
    Automatic,
    /// TCP even on one host.
    Tcp,
    /// As on hosts with this many ranks each, for tests on one machine: TCP between them.
    Hosts(u32),
}

/// What ranks encrypt that they send over TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encryption {
    /// What leaves the host.
    #[default]
    BetweenHosts,
    Always,
    /// Nothing, where the other side also says so: a network that nobody else reaches.
    Never,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(300),
            deadline: Duration::from_secs(10),
            patience: Duration::from_secs(600),
            streams: 2,
            transport: Transport::Automatic,
            encryption: Encryption::default(),
            reached_at: None,
            table: AlgorithmTable::default(),
            recorded: 1024,
            flight: None,
        }
    }
}

/// Where rank 0 listens when nothing says otherwise and all ranks are on one machine.
const DEFAULT_ADDRESS: &str = "127.0.0.1";

impl Rendezvous {
    pub(crate) fn with_encryption(&self, encryption: Encryption) -> Self {
        Self { secret: self.secret.clone().with_encryption(encryption), ..self.clone() }
    }

    /// As the cluster, `torchrun` or `srun` set it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or SLURM_PROCID,
    /// SLURM_NTASKS and SLURM_JOB_ID. A process with none of them is a world of its own.
    pub fn from_environment(variables: &BTreeMap<String, String>) -> Result<Self, JoinError> {
        let first = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| Some((name, variables.get(name)?.as_str())))
        };
        let secret = secret(variables)?;
        let (Some(rank), Some(world)) =
            (first(["RANK", "SLURM_PROCID"]), first(["WORLD_SIZE", "SLURM_NTASKS"]))
        else {
            return match first(["RANK", "WORLD_SIZE"]) {
                None => {
                    Ok(Self { rank: 0, world: 1, address: DEFAULT_ADDRESS.into(), port: 0, secret, epoch: 0 })
                }
                Some(("RANK", _)) => Err(JoinError::NoVariable { name: "WORLD_SIZE" }),
                Some(_) => Err(JoinError::NoVariable { name: "RANK" }),
            };
        };
        let (rank, world) = (whole(rank)?, whole(world)?);
        if world == 0 || rank >= world {
            let why = format!("ranks of a world of {world} count from 0 to {}", i64::from(world) - 1);
            return Err(JoinError::BadVariable { name: "RANK", value: rank.to_string(), why });
        }
        let address = match variables.get("MASTER_ADDR") {
            Some(address) => address.clone(),
            None if world == 1 => DEFAULT_ADDRESS.into(),
            None => slurm_address(variables).ok_or(JoinError::NoVariable { name: "MASTER_ADDR" })?,
        };
        Ok(Self { rank, world, address, port: port(variables, world)?, secret, epoch: 0 })
    }

    /// Ranks of one machine that share a port and a secret.
    pub fn on_this_machine(rank: u32, world: u32, port: u16, secret: &[u8]) -> Self {
        let secret = Secret::new(secret);
        Self { rank, world, address: DEFAULT_ADDRESS.into(), port, secret, epoch: 0 }
    }

    /// The addresses of rank 0.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>, JoinError> {
        let found = (self.name(), self.port).to_socket_addrs();
        let found: Vec<SocketAddr> =
            found.map_err(|source| JoinError::Resolve { name: self.address.clone(), source })?.collect();
        if found.is_empty() {
            let source = io::ErrorKind::NotFound.into();
            return Err(JoinError::Resolve { name: self.address.clone(), source });
        }
        Ok(found)
    }

    /// Where rank 0 listens. A host whose own name means loopback to itself listens on all its addresses, or nobody else
    /// could reach it.
    pub(crate) fn listening_address(&self) -> Result<SocketAddr, JoinError> {
        Ok(self.reachable(self.addresses()?[0]))
    }

    /// An address to listen on that others reach too, where they may be on other hosts.
    pub(crate) fn reachable(&self, own: SocketAddr) -> SocketAddr {
        let is_meant = self.name().parse::<IpAddr>().is_ok() || self.address == "localhost";
        let any: IpAddr = if own.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        if own.ip().is_loopback() && !is_meant { SocketAddr::new(any, own.port()) } else { own }
    }

    /// The address without the brackets that an IPv6 address may have.
    fn name(&self) -> &str {
        self.address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&self.address)
    }
}

impl WorldOptions {
    /// BEDPLATE_COMM_DEADLINE, BEDPLATE_COMM_PATIENCE and BEDPLATE_COMM_JOIN in seconds, BEDPLATE_COMM_STREAMS,
    /// BEDPLATE_COMM_TRANSPORT (`auto` or `tcp`) and the folder BEDPLATE_FLIGHT.
    pub fn from_environment(variables: &BTreeMap<String, String>) -> Result<Self, JoinError> {
        let mut options = Self::default();
        let seconds = |name: &'static str, to: &mut Duration| -> Result<(), JoinError> {
            let Some(value) = variables.get(name) else { return Ok(()) };
            let number: f64 = value.parse().unwrap_or(0.0);
            let fits = number.is_finite() && (0.1..1e9).contains(&number);
            let why = "it must be a number of seconds, at least 0.1".to_owned();
            let bad = || JoinError::BadVariable { name, value: value.clone(), why };
            *to = fits.then(|| Duration::from_secs_f64(number)).ok_or_else(bad)?;
            Ok(())
        };
        seconds("BEDPLATE_COMM_JOIN", &mut options.join)?;
        seconds("BEDPLATE_COMM_DEADLINE", &mut options.deadline)?;
        seconds("BEDPLATE_COMM_PATIENCE", &mut options.patience)?;
        if let Some(value) = variables.get("BEDPLATE_COMM_STREAMS") {
            let streams = whole(("BEDPLATE_COMM_STREAMS", value))?;
            if !(1..=16).contains(&streams) {
                let why = "it must be between 1 and 16".to_owned();
                return Err(JoinError::BadVariable {
                    name: "BEDPLATE_COMM_STREAMS",
                    value: value.clone(),
                    why,
                });
            }
            options.streams = streams;
        }
        options.transport = match variables.get("BEDPLATE_COMM_TRANSPORT").map(String::as_str) {
            None | Some("auto") => Transport::Automatic,
            Some("tcp") => Transport::Tcp,
            Some(other) => {
                let why = "it must be `auto` or `tcp`".to_owned();
                let (name, value) = ("BEDPLATE_COMM_TRANSPORT", other.to_owned());
                return Err(JoinError::BadVariable { name, value, why });
            }
        };
        options.encryption = match variables.get("BEDPLATE_COMM_ENCRYPTION").map(String::as_str) {
            None | Some("auto") => Encryption::BetweenHosts,
            Some("always") => Encryption::Always,
            Some("never") => Encryption::Never,
            Some(other) => {
                let why = "it must be `auto`, `always` or `never`".to_owned();
                let (name, value) = ("BEDPLATE_COMM_ENCRYPTION", other.to_owned());
                return Err(JoinError::BadVariable { name, value, why });
            }
        };
        options.flight = variables.get("BEDPLATE_FLIGHT").map(PathBuf::from);
        Ok(options)
    }
}

fn whole((name, value): (&'static str, &str)) -> Result<u32, JoinError> {
    let bad =
        |_| JoinError::BadVariable { name, value: value.to_owned(), why: "it must be a whole number".into() };
    value.trim().parse().map_err(bad)
}

/// Under `torchrun` its own store listens on MASTER_PORT, so rank 0 takes the port after it.
fn port(variables: &BTreeMap<String, String>, world: u32) -> Result<u16, JoinError> {
    let bad = |name, value: &str, why: &str| {
        Err(JoinError::BadVariable { name, value: value.to_owned(), why: why.to_owned() })
    };
    match (variables.get("MASTER_PORT"), variables.get("SLURM_JOB_ID")) {
        (Some(value), _) => match value.trim().parse::<u16>() {
            Ok(0) | Err(_) => bad("MASTER_PORT", value, "it must be a port from 1 to 65535"),
            Ok(port) if variables.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|used| used == "True") => {
                Ok(port.checked_add(1).unwrap_or(port - 1))
            }
            Ok(port) => Ok(port),
        },
        (None, _) if world == 1 => Ok(0),
        // The steps of a job follow each other, jobs run at the same time.
        (None, Some(job)) => Ok(20_000 + (job.parse::<u64>().unwrap_or(0) % 10_000) as u16),
        (None, None) => Err(JoinError::NoVariable { name: "MASTER_PORT" }),
    }
}

/// `srun` names the hosts of a step; the first of them has rank 0.
fn slurm_address(variables: &BTreeMap<String, String>) -> Option<String> {
    let list = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let list = list.into_iter().find_map(|name| variables.get(name))?;
    first_host(list)
}

/// The first host of Slurm's notation: `gpu[07-09,12],cpu1` begins with `gpu07`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find(',').unwrap_or(list.len());
    let Some(bracket) = list.find('[').filter(|at| *at < end) else {
        return (end > 0).then(|| list[..end].to_owned());
    };
    let (prefix, rest) = list.split_at(bracket);
    let (inside, after) = rest[1..].split_once(']')?;
    let first = inside.split([',', '-']).next().filter(|number| !number.is_empty())?;
    let suffix = after.split(',').next().unwrap_or("");
    Some(format!("{prefix}{first}{suffix}"))
}

/// BEDPLATE_SECRET, the file BEDPLATE_SECRET_FILE, or a file of the user that is made on first use; ranks on hosts with one
/// home directory share it.
fn secret(variables: &BTreeMap<String, String>) -> Result<Secret, JoinError> {
    if let Some(value) = variables.get("BEDPLATE_SECRET").filter(|value| !value.is_empty()) {
        return Ok(Secret::new(value.as_bytes()));
    }
    if let Some(path) = variables.get("BEDPLATE_SECRET_FILE").map(PathBuf::from) {
        return read_secret(&path).map_err(|source| JoinError::Secret { path, source });
    }
    let home = variables.get("XDG_STATE_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(variables.get("HOME")?).join(".local/state")));
    let path = home.unwrap_or_else(std::env::temp_dir).join("bedplate").join("comm.secret");
    user_secret(&path).map_err(|source| JoinError::Secret { path, source })
}

fn read_secret(path: &Path) -> io::Result<Secret> {
    let file = open_regular(path)?;
    let facts = file.metadata()?;
    let is_trusted = facts.uid() == nix::unistd::geteuid().as_raw() || facts.uid() == 0;
    if facts.mode() & 0o077 != 0 || !is_trusted {
        let why = "it must be a file of this user that only its owner can read (chmod 600)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut bytes = Vec::new();
    file.take(4096).read_to_end(&mut bytes)?;
    let text = bytes.trim_ascii();
    if text.len() < 16 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a secret has at least 16 characters"));
    }
    Ok(Secret::new(text))
}

/// Made by whichever rank comes first: the others find it whole, because it gets its name when it is written.
fn user_secret(path: &Path) -> io::Result<Secret> {
    if !path.exists() {
        let folder = path.parent().expect("the path has a folder");
        fs::create_dir_all(folder)?;
        let draft = folder.join(format!(".comm.secret.{}", random_text()?));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let outcome = file.write_all(random_text()?.as_bytes()).and_then(|()| fs::hard_link(&draft, path));
        fs::remove_file(&draft)?;
        match outcome {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    read_secret(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        let secret = ("BEDPLATE_SECRET", "a secret of the tests");
        list.iter().chain([&secret]).map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn found(list: &[(&str, &str)]) -> Result<(u32, u32, String, u16), String> {
        let found = Rendezvous::from_environment(&variables(list)).map_err(|error| error.to_string())?;
        Ok((found.rank, found.world, found.address, found.port))
    }

    #[test]
    fn ranks_are_found_as_torchrun_srun_and_the_cluster_set_them() {
        let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
        assert_eq!(found(&torch), Ok((3, 8, "node1".into(), 29500)));
        let elastic = [&torch[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(found(&elastic), Ok((3, 8, "node1".into(), 29501)));
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "12345"),
            ("SLURM_JOB_NODELIST", "gpu[07-09,12],cpu1"),
        ];
        assert_eq!(found(&slurm), Ok((1, 2, "gpu07".into(), 22345)));
        assert_eq!(found(&[]), Ok((0, 1, "127.0.0.1".into(), 0)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |list: &[(&str, &str)], message: &str| assert_eq!(found(list).unwrap_err(), message);
        check(&[("RANK", "0")], "`WORLD_SIZE` is not set, so this process does not know which rank it is");
        check(
            &[("RANK", "4"), ("WORLD_SIZE", "4")],
            "`RANK` is `4`: ranks of a world of 4 count from 0 to 3",
        );
        check(&[("RANK", "x"), ("WORLD_SIZE", "4")], "`RANK` is `x`: it must be a whole number");
        let ranks = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1")];
        check(&ranks, "`MASTER_PORT` is not set, so this process does not know which rank it is");
        let port = [&ranks[..], &[("MASTER_PORT", "70000")]].concat();
        check(&port, "`MASTER_PORT` is `70000`: it must be a port from 1 to 65535");
    }

    #[test]
    fn ranks_listen_where_others_reach_them_unless_loopback_is_meant() {
        let listens = |address: &str, own: &str| {
            let rendezvous =
                Rendezvous { address: address.into(), ..Rendezvous::on_this_machine(0, 2, 1, b"s") };
            rendezvous.reachable(own.parse().expect("an address")).to_string()
        };
        assert_eq!(listens("node1", "127.0.1.1:5"), "0.0.0.0:5");
        assert_eq!(listens("node1", "[::1]:5"), "[::]:5");
        assert_eq!(listens("node1", "10.0.0.1:5"), "10.0.0.1:5");
        for meant in ["127.0.0.1", "localhost"] {
            assert_eq!(listens(meant, "127.0.0.1:5"), "127.0.0.1:5");
        }
        for meant in ["::1", "[::1]", "localhost"] {
            assert_eq!(listens(meant, "[::1]:5"), "[::1]:5");
        }
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, host) in [("a", "a"), ("a1,a2", "a1"), ("a[1-3]", "a1"), ("a[01,03]-ib,b", "a01-ib")] {
            assert_eq!(first_host(list).as_deref(), Some(host));
        }
        assert_eq!(first_host(""), None);
        assert_eq!(first_host("a["), None);
    }
}

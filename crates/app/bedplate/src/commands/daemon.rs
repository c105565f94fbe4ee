//! `bedplate daemon`: the control plane of a cluster, as `bedplate up` starts it.

use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_daemon::{DaemonOptions, serve};
use bedplate_local::{LocalError, Machine, Shape, Wanted, state_directory};
use bedplate_terminal::{CliError, Console, Context, ProgramError, files};
use nix::sys::stat::{Mode, umask};

use crate::clusters;
use crate::launcher::launcher;
use crate::site::read_site;

/// Room that logs and reports cannot take from the journal: the records of some hundred thousand jobs.
const RESERVE: u64 = 64 << 20;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where the shape of the cluster lies, and where journal and tokens are kept
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The cluster, where `bedplate up` has not put it into the state directory
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Its rules
    #[arg(long, value_name = "FILE", requires = "cluster")]
    site: Option<PathBuf>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &Console) -> Result<(), CliError> {
    // The daemon outlives whoever started it; failing means that it leads a session already.
    let _ = nix::unistd::setsid();
    bedplate_supervise::take_precedence();
    // Journal, tokens and keys are for their owner alone, in a directory that others may have to pass through.
    umask(Mode::from_bits_truncate(0o077));
    let state = state_directory(arguments.state_dir.clone());
    let catalog = context.load_catalog()?;
    let shape = match &arguments.cluster {
        Some(given) => {
            let wanted = Wanted {
                cluster: Some(clusters::load(given, &catalog)?),
                site: arguments.site.as_deref().map(files::absolute).transpose()?,
                ..Wanted::default()
            };
            let shape = Shape::new(&wanted, &catalog, Machine::this())?;
            shape.keep(&state)?;
            shape
        }
        None => Shape::load(&state)?,
    };
    let cluster = shape.read_cluster(&catalog)?;
    let site = shape.site.as_deref().map(|path| read_site(path, &cluster)).transpose()?.unwrap_or_default();
    let mut options = DaemonOptions::new(state.path().to_owned(), cluster);
    options.settings = site.settings;
    options.rules = site.rules;
    options.retention = site.retention;
    options.policy = site.policy;
    options.reserve_bytes = RESERVE;
    options.listen = read_address(&arguments.listen)?;
    options.log_directories = vec![state.path().join("agents")];
    if let Some(user) = user_name() {
        options.administrator = user;
    }
    launcher(context, console)?
        .guard_supervisor(state)
        .map_err(|source| LocalError::Start { what: "the guard of the supervisor".into(), source })?;
    Ok(serve(options)?)
}

/// Who runs this, whatever the environment says.
fn user_name() -> Option<String> {
    nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name)
}

/// An address with or without a port.
fn read_address(text: &str) -> Result<SocketAddr, CliError> {
    let with_port = text.parse().or_else(|_| format!("{text}:0").parse());
    let message = || format!("`{text}` is not an address to listen at, such as 127.0.0.1:7431");
    Ok(with_port.map_err(|_| ProgramError::Usage { message: message() })?)
}

//! Which cluster a command talks to: one at an address, one of a state directory on this machine, or one by its name in
//! the contexts file.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Once;

use bedplate_drivers::{
    ClusterKind, Context as ClusterContext, Contexts, ContextsError, Driver, DriverError, Kubernetes, Local,
    Slurm, StateDirectory, Token,
};
use bedplate_local::{home, state_directory, variable};
use bedplate_terminal::CliError;
use bedplate_terminal::present::printable;

/// The options of every command that talks to a cluster.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Which cluster")]
pub(crate) struct Connection {
    /// A cluster from `bedplate context list`; overrides the other two
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Where the cluster is, with its token in BEDPLATE_TOKEN
    #[arg(long, value_name = "URL", env = "BEDPLATE_SERVER", hide_env_values = true)]
    server: Option<String>,

    /// State directory of a cluster on this machine [default: ~/.local/state/bedplate]
    #[arg(long, value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

/// The cluster that is meant.
struct Chosen {
    /// In the contexts file, where it comes from there.
    name: Option<String>,
    context: ClusterContext,
}

impl Connection {
    /// A cluster of the contexts file.
    pub(crate) fn named(name: &str) -> Self {
        Self { context: Some(name.to_owned()), ..Self::default() }
    }

    /// The cluster, whatever kind it is; nothing has been asked yet.
    pub(crate) fn driver(&self) -> Result<Box<dyn Driver>, CliError> {
        let Chosen { context, .. } = self.choose()?;
        match context.kind {
            ClusterKind::Local => Ok(Box::new(Local::new(context.place()?))),
            ClusterKind::Slurm => Ok(Box::new(context.slurm_place()?.driver()?)),
            ClusterKind::Kubernetes => Ok(Box::new(Kubernetes::new(&context.kubernetes)?)),
        }
    }

    /// The Slurm that is meant; nothing where the cluster is of another kind.
    pub(crate) fn slurm(&self) -> Result<Option<Slurm>, CliError> {
        let Chosen { context, .. } = self.choose()?;
        match context.kind {
            ClusterKind::Slurm => Ok(Some(context.slurm_place()?.driver()?)),
            _ => Ok(None),
        }
    }

    /// Whether a cluster was named on the command line, by whichever option.
    pub(crate) fn is_named(&self) -> bool {
        self.context.is_some() || self.server.is_some() || self.state_dir.is_some()
    }

    /// A cluster of our own, because only those have `what`.
    pub(crate) fn local(&self, what: &'static str) -> Result<Local, CliError> {
        let Chosen { name, context } = self.choose()?;
        match context.kind {
            ClusterKind::Local => Ok(Local::new(context.place()?)),
            kind => {
                let name = name.unwrap_or_default();
                Err(DriverError::from(ContextsError::OtherKind { name, kind, what }).into())
            }
        }
    }

    /// Whether the cluster is named by its address, so that its state directory may be elsewhere.
    pub(crate) fn is_by_address(&self) -> Result<bool, CliError> {
        Ok(self.choose()?.context.state_dir.is_none())
    }

    /// The state directory of a cluster on this machine.
    pub(crate) fn state(&self) -> Result<StateDirectory, CliError> {
        Ok(state_directory(self.choose()?.context.state_dir))
    }

    /// Says, once, that the context in use does not count for this command.
    fn say_overridden(&self) {
        static ONCE: Once = Once::new();
        let Ok(contexts) = Contexts::load(&contexts_path()) else { return };
        let Some(current) = contexts.current else { return };
        let is_from = |name: &str, value: Option<&str>| {
            variable(name).filter(|set| Some(set.as_str()) == value).map(|_| name.to_owned())
        };
        let state_dir = self.state_dir.as_ref().and_then(|path| path.to_str());
        let by = match self.server.as_deref().filter(|server| !server.is_empty()) {
            Some(server) => is_from("BEDPLATE_SERVER", Some(server)).unwrap_or_else(|| "--server".to_owned()),
            None => is_from("BEDPLATE_STATE", state_dir).unwrap_or_else(|| "--state-dir".to_owned()),
        };
        ONCE.call_once(|| {
            let remark = format!("note: {by} overrides the context `{current}`\n");
            // If standard error is closed there is nowhere left to say it.
            let _ = io::stderr().lock().write_all(printable(&remark).as_bytes());
        });
    }

    fn choose(&self) -> Result<Chosen, CliError> {
        let unnamed = |context| Chosen { name: None, context };
        if self.context.is_none()
            && let Some(context) = given(self.server.clone(), self.state_dir.clone())
        {
            self.say_overridden();
            return Ok(unnamed(context));
        }
        let contexts = Contexts::load(&contexts_path()).map_err(DriverError::from)?;
        match self.context.clone().or_else(|| contexts.current.clone()) {
            Some(name) => {
                let context = contexts.find(&name).map_err(DriverError::from)?.clone();
                Ok(Chosen { name: Some(name), context })
            }
            None => Ok(unnamed(ClusterContext::of_state(state_directory(None).0))),
        }
    }
}

/// The cluster at an address, or else of a state directory; empty ones count as absent.
fn given(server: Option<String>, state_dir: Option<PathBuf>) -> Option<ClusterContext> {
    if let Some(server) = server.filter(|server| !server.is_empty()) {
        let token = variable("BEDPLATE_TOKEN").map(Token::Text);
        return Some(ClusterContext::at(server, variable("BEDPLATE_FINGERPRINT"), token));
    }
    state_dir.filter(|path| !path.as_os_str().is_empty()).map(ClusterContext::of_state)
}

/// The cluster that the environment names, which overrides the current context.
pub(crate) fn of_environment() -> Option<ClusterContext> {
    given(variable("BEDPLATE_SERVER"), variable("BEDPLATE_STATE").map(PathBuf::from))
}

/// Where the user keeps the names of clusters.
pub(crate) fn contexts_path() -> PathBuf {
    let configuration =
        || variable("XDG_CONFIG_HOME").map(PathBuf::from).unwrap_or_else(|| home().join(".config"));
    let given = variable("BEDPLATE_CONTEXTS").map(PathBuf::from);
    given.unwrap_or_else(|| configuration().join("bedplate/contexts.toml"))
}

//! The clusters that a user works with, by name, and which of them is meant when none is named.
//!
//! ```toml
//! current = "lab"
//!
//! [contexts.lab]
//! kind = "local"
//! url = "https://lab:7431"
//! fingerprint = "9f86d0…"
//! token_file = "/home/ada/.config/bedplate/lab.token"
//!
//! [contexts.here]
//! kind = "local"
//! state_dir = "/home/ada/.local/state/bedplate"
//!
//! [contexts.site]
//! kind = "slurm"
//! url = "unix:/run/slurmrestd.sock"   # left out: Slurm's commands
//!
//! [contexts.pods]
//! kind = "kubernetes"
//! kube_context = "prod"               # left out: the kubeconfig's current one
//! image = "registry/train:1"          # of jobs that name none
//! ```
//!
//! The file is written with access for its owner alone, because it may hold tokens. Where it lies is decided by the
//! caller.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_diag::{Class, Diagnostic, Page, Source, nearest, shown};
use bedplate_document::{DocumentError, Table};
use bedplate_host::replace_private_file;
use bedplate_kubernetes::KubernetesPlace;

use crate::{ClusterPlace, DriverError, KubernetesSite, SlurmPlace, StateDirectory};

/// No file of contexts is longer.
const LONGEST: u64 = 16 << 20;

/// Which kind of control plane a cluster has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterKind {
    /// Our own, on this machine or elsewhere.
    Local,
    Slurm,
    Kubernetes,
}

impl ClusterKind {
    pub const ALL: [(&'static str, ClusterKind); 3] = [
        ("local", ClusterKind::Local),
        ("slurm", ClusterKind::Slurm),
        ("kubernetes", ClusterKind::Kubernetes),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Where the token of a cluster is found.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    File(PathBuf),
    Text(String),
}

impl std::fmt::Debug for Token {
    /// Without a token's text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::File(path) => write!(f, "Token({})", path.display()),
            Token::Text(_) => write!(f, "Token"),
        }
    }
}

/// How to reach one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub kind: ClusterKind,
    pub url: Option<String>,
    pub fingerprint: Option<String>,
    pub token: Option<Token>,
    /// Of a cluster that was started on this machine; instead of the rest.
    pub state_dir: Option<PathBuf>,
    /// Of a Slurm: the file that its commands read, where it is not the usual one.
    pub slurm_conf: Option<PathBuf>,
    /// Of a Slurm: how many seconds an answer may take.
    pub patience_s: Option<u64>,
    /// Of a Kubernetes cluster: where it is, and what its jobs have in common.
    pub kubernetes: KubernetesSite,
}

impl Context {
    /// A cluster of our own at an address.
    pub fn at(url: String, fingerprint: Option<String>, token: Option<Token>) -> Self {
        Self { url: Some(url), fingerprint, token, ..Self::of_kind(ClusterKind::Local) }
    }

    /// A cluster of our own that was started on this machine.
    pub fn of_state(directory: PathBuf) -> Self {
        Self { state_dir: Some(directory), ..Self::of_kind(ClusterKind::Local) }
    }

    /// A cluster of a kind of which nothing more is known.
    pub fn of_kind(kind: ClusterKind) -> Self {
        let (url, fingerprint, token, state_dir) = (None, None, None, None);
        let kubernetes = KubernetesSite::default();
        Self { kind, url, fingerprint, token, state_dir, slurm_conf: None, patience_s: None, kubernetes }
    }

    /// How to reach it. Reads the token and, for a cluster of this machine, its address.
    pub fn place(&self) -> Result<ClusterPlace, DriverError> {
        if let Some(directory) = &self.state_dir {
            return StateDirectory(directory.clone()).place();
        }
        let token = self.read_token()?;
        ClusterPlace::of_daemon(self.url.as_deref().unwrap_or_default(), token, self.fingerprint.clone())
    }

    /// How to reach a Slurm. Its token is the one that the context names, else the one in `SLURM_JWT`.
    pub fn slurm_place(&self) -> Result<SlurmPlace, DriverError> {
        let usual = SlurmPlace::default();
        let from_environment = || std::env::var("SLURM_JWT").ok().filter(|token| !token.is_empty());
        Ok(SlurmPlace {
            rest: self.url.clone(),
            fingerprint: self.fingerprint.clone(),
            token: self.read_token()?.or_else(from_environment),
            configuration: self.slurm_conf.clone(),
            patience: self.patience_s.map_or(usual.patience, Duration::from_secs),
            ..usual
        })
    }

    fn read_token(&self) -> Result<Option<String>, DriverError> {
        match &self.token {
            None => Ok(None),
            Some(Token::Text(text)) => Ok(Some(text.clone())),
            Some(Token::File(path)) => {
                let read = fs::read_to_string(path);
                let text = read.map_err(|source| DriverError::State { path: path.clone(), source })?;
                // As `scontrol token` prints it.
                Ok(Some(text.trim().trim_start_matches("SLURM_JWT=").to_owned()))
            }
        }
    }
}

/// The file of contexts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contexts {
    /// Meant when none is named; then it is in `all`.
    pub current: Option<String>,
    pub all: BTreeMap<String, Context>,
}

#[derive(Debug, thiserror::Error)]
pub enum ContextsError {
    #[error("there is no context `{name}`")]
    Unknown { name: String, nearest: Option<String> },
    #[error("`{name}` cannot be the name of a context")]
    Name { name: String },
    #[error("context `{name}` is a {} cluster; only our own control plane has {what}", kind.name())]
    OtherKind { name: String, kind: ClusterKind, what: &'static str },
    #[error("context `{name}` does not say where its cluster is: {reason}")]
    Incomplete { name: String, reason: &'static str },
    #[error("{} holds a token and others may read it", path.display())]
    Readable { path: PathBuf },
    #[error("cannot {verb} {}", path.display())]
    File { verb: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Document(#[from] DocumentError),
}

pub(crate) static UNKNOWN: Page = Page {
    code: "context/unknown",
    class: Class::User,
    meaning: "No cluster of that name is in the contexts file.",
    remedy: "see the names with `bedplate context list`, or add one with `bedplate context add NAME --url URL`",
};
pub(crate) static NAME: Page = Page {
    code: "context/name",
    class: Class::User,
    meaning: "A context's name has 1 to 64 letters, digits, dots, hyphens and underscores, and begins with a letter, a digit or an underscore.",
    remedy: "choose such a name, for example `lab` or `site-2`",
};
pub(crate) static OTHER_KIND: Page = Page {
    code: "context/other-kind",
    class: Class::User,
    meaning: "Tokens, chaos, pruning history and starting nodes are features of our own control plane. Clusters of another kind have their own tools for them.",
    remedy: "name a context of the kind `local` with `--context`; `bedplate context list` shows the kinds",
};
pub(crate) static INCOMPLETE: Page = Page {
    code: "context/incomplete",
    class: Class::User,
    meaning: "A context of the kind `local` has a `state_dir`, or a `url` with a token and a fingerprint. A context of the kind `slurm` may have a `url`, which is that of its REST server, but no `state_dir`. A context of the kind `kubernetes` has neither, because a kubeconfig says where the cluster is.",
    remedy: "give it one of the two: `bedplate context add NAME --url URL --token-file FILE`, or `--state-dir DIR`",
};
pub(crate) static READABLE: Page = Page {
    code: "context/readable",
    class: Class::User,
    meaning: "A token gives access to a cluster, so only its owner may be able to read the file that holds it.",
    remedy: "run `chmod 600` on the file, or keep the token in a file of its own and name that with `token_file`",
};
pub(crate) static FILE: Page = Page {
    code: "context/file",
    class: Class::User,
    meaning: "The contexts file could not be read or written.",
    remedy: "check its permissions, or name another file with BEDPLATE_CONTEXTS",
};

impl Diagnostic for ContextsError {
    fn page(&self) -> &'static Page {
        match self {
            ContextsError::Unknown { .. } => &UNKNOWN,
            ContextsError::Name { .. } => &NAME,
            ContextsError::OtherKind { .. } => &OTHER_KIND,
            ContextsError::Incomplete { .. } => &INCOMPLETE,
            ContextsError::Readable { .. } => &READABLE,
            ContextsError::File { .. } => &FILE,
            ContextsError::Document(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            ContextsError::Unknown { nearest: Some(name), .. } => Some(format!("did you mean `{name}`?")),
            ContextsError::Document(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&bedplate_diag::Place> {
        match self {
            ContextsError::Document(error) => error.place(),
            _ => None,
        }
    }
}

impl Contexts {
    /// Those of a file; none when there is no file.
    pub fn load(path: &Path) -> Result<Self, ContextsError> {
        let failed = |source| ContextsError::File { verb: "read", path: path.to_owned(), source };
        match fs::metadata(path) {
            Ok(metadata) => regular(&metadata).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(failed(source)),
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let contexts = Self::from_toml(&text, &path.display().to_string())?;
        let holds_token = contexts.all.values().any(|context| matches!(context.token, Some(Token::Text(_))));
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
        if holds_token && mode & 0o077 != 0 {
            return Err(ContextsError::Readable { path: path.to_owned() });
        }
        Ok(contexts)
    }

    pub fn from_toml(text: &str, source: &str) -> Result<Self, ContextsError> {
        let file = Table::parse(Source::new(source, text))?;
        let mut all = BTreeMap::new();
        if let Some(table) = file.table("contexts")? {
            for name in table.keys().map(str::to_owned).collect::<Vec<String>>() {
                if let Some(entry) = table.table(&name)? {
                    all.insert(name, context(&entry)?);
                }
            }
            table.finish()?;
        }
        let current: Option<String> = file.optional("current")?;
        if current.as_ref().is_some_and(|name| !all.contains_key(name)) {
            return Err(file.bad_value("current", "there is no context of that name").into());
        }
        file.finish()?;
        Ok(Self { current, all })
    }

    pub fn to_toml(&self) -> String {
        // A JSON string is a basic string of TOML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut text =
            self.current.iter().map(|name| format!("current = {}\n", quoted(name))).collect::<String>();
        for (name, context) in &self.all {
            text += &format!("\n[contexts.{}]\nkind = \"{}\"\n", quoted(name), context.kind.name());
            let path = |path: &PathBuf| path.display().to_string();
            let (file, inline) = match &context.token {
                Some(Token::File(file)) => (Some(path(file)), None),
                Some(Token::Text(token)) => (None, Some(token.clone())),
                None => (None, None),
            };
            let entries = [
                ("url", context.url.clone()),
                ("fingerprint", context.fingerprint.clone()),
                ("token_file", file),
                ("token", inline),
                ("state_dir", context.state_dir.as_ref().map(path)),
                ("slurm_conf", context.slurm_conf.as_ref().map(path)),
                ("kubeconfig", context.kubernetes.place.kubeconfig.as_ref().map(path)),
                ("kube_context", context.kubernetes.place.context.clone()),
                ("namespace", context.kubernetes.place.namespace.clone()),
                ("image", context.kubernetes.image.clone()),
                ("scheduler", context.kubernetes.scheduler.clone()),
            ];
            for (key, value) in entries {
                text += &value.map(|value| format!("{key} = {}\n", quoted(&value))).unwrap_or_default();
            }
            text +=
                &context.patience_s.map(|seconds| format!("patience_s = {seconds}\n")).unwrap_or_default();
            text += if context.kubernetes.has_plain_jobs { "plain_jobs = true\n" } else { "" };
        }
        text
    }

    /// Loads the file, changes it and saves it; of several programs that do so at once one waits for the other.
    pub fn change(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<(), ContextsError>,
    ) -> Result<Self, ContextsError> {
        let failed = |source| ContextsError::File { verb: "write", path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        // Not the file itself: saving replaces it.
        let lock = File::open(folder).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut contexts = Self::load(path)?;
        change(&mut contexts)?;
        contexts.save(path)?;
        Ok(contexts)
    }

    /// Replaces the file as a whole, so that there is a valid one at any time. A link keeps pointing to it.
    fn save(&self, path: &Path) -> Result<(), ContextsError> {
        let failed = |source| ContextsError::File { verb: "write", path: path.to_owned(), source };
        let path = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => &fs::canonicalize(path).map_err(failed)?,
            _ => path,
        };
        if let Ok(metadata) = fs::metadata(path) {
            regular(&metadata).map_err(failed)?;
        }
        replace_private_file(path, self.to_toml().as_bytes()).map_err(failed)
    }

    pub fn find(&self, name: &str) -> Result<&Context, ContextsError> {
        self.all.get(name).ok_or_else(|| {
            let nearest = nearest(name, self.all.keys().map(String::as_str)).map(str::to_owned);
            ContextsError::Unknown { name: shown(name), nearest }
        })
    }

    /// Adds a context, or replaces the one of that name.
    pub fn add(&mut self, name: &str, context: Context) -> Result<(), ContextsError> {
        let incomplete = |reason| ContextsError::Incomplete { name: name.to_owned(), reason };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with(['.', '-']) || !name.chars().all(is_plain) {
            return Err(ContextsError::Name { name: shown(name) });
        }
        match (context.kind, &context.url, &context.state_dir) {
            (ClusterKind::Kubernetes, Some(_), _) | (ClusterKind::Kubernetes, _, Some(_)) => {
                return Err(incomplete("a Kubernetes cluster is found by a kubeconfig"));
            }
            (ClusterKind::Slurm, _, Some(_)) => {
                return Err(incomplete("a Slurm has no state directory of ours"));
            }
            (ClusterKind::Local, None, None) => {
                return Err(incomplete("it has neither a URL nor a state directory"));
            }
            (ClusterKind::Local, Some(_), Some(_)) => {
                return Err(incomplete("it has a URL and a state directory"));
            }
            (ClusterKind::Local, Some(_), None) if context.token.is_none() => {
                return Err(incomplete("it has a URL and no token"));
            }
            _ => {}
        }
        self.all.insert(name.to_owned(), context);
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> Result<(), ContextsError> {
        self.find(name)?;
        self.all.remove(name);
        self.current = self.current.take().filter(|current| current != name);
        Ok(())
    }
}

fn regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() && metadata.len() <= LONGEST {
        true => Ok(()),
        false if metadata.is_file() => Err(io::ErrorKind::FileTooLarge.into()),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn context(entry: &Table) -> Result<Context, DocumentError> {
    let kind = match entry.has("kind") {
        true => entry.choice("kind", &ClusterKind::ALL)?,
        false => ClusterKind::Local,
    };
    let path = |key: &str| Ok::<_, DocumentError>(entry.optional::<String>(key)?.map(PathBuf::from));
    let token = match (path("token_file")?, entry.optional::<String>("token")?) {
        (Some(_), Some(_)) => return Err(entry.bad_value("token", "there is a `token_file` too")),
        (Some(file), None) => Some(Token::File(file)),
        (None, text) => text.map(Token::Text),
    };
    let context = Context {
        kind,
        url: entry.optional("url")?,
        fingerprint: entry.optional("fingerprint")?,
        token,
        state_dir: path("state_dir")?,
        slurm_conf: path("slurm_conf")?,
        patience_s: entry.optional("patience_s")?,
        kubernetes: KubernetesSite {
            place: KubernetesPlace {
                kubeconfig: path("kubeconfig")?,
                context: entry.optional("kube_context")?,
                namespace: entry.optional("namespace")?,
            },
            image: entry.optional("image")?,
            scheduler: entry.optional("scheduler")?,
            has_plain_jobs: entry.or("plain_jobs", false)?,
        },
    };
    entry.finish()?;
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Contexts {
        let mut contexts = Contexts::default();
        let token = Some(Token::File("/home/ada/lab.token".into()));
        contexts.add("lab", Context::at("https://lab:7431".into(), Some("ab".into()), token)).unwrap();
        contexts.add("here", Context::of_state("/var/lib/bedplate".into())).unwrap();
        let slurm = Context {
            url: Some("unix:/run/rest.sock".into()),
            slurm_conf: Some("/etc/slurm/slurm.conf".into()),
            patience_s: Some(30),
            ..Context::of_kind(ClusterKind::Slurm)
        };
        contexts.add("site", slurm).unwrap();
        let place = KubernetesPlace {
            kubeconfig: Some("/home/ada/pods.yaml".into()),
            context: Some("prod".into()),
            namespace: Some("team".into()),
        };
        let kubernetes = KubernetesSite {
            place,
            image: Some("registry/train:1".into()),
            scheduler: Some("bedplate".into()),
            has_plain_jobs: true,
        };
        let pods = Context { kubernetes, ..Context::of_kind(ClusterKind::Kubernetes) };
        contexts.add("pods", pods).unwrap();
        contexts.current = Some("lab".into());
        contexts
    }

    #[test]
    fn a_file_is_written_as_it_is_read() {
        assert_eq!(Contexts::from_toml(&two().to_toml(), "c.toml").unwrap(), two());
        assert_eq!(Contexts::from_toml("", "c.toml").unwrap(), Contexts::default());
    }

    #[test]
    fn wrong_files_say_where() {
        for (text, code) in [
            ("current = \"x\"", "document/bad-value"),
            ("[contexts.a]\nkind = \"pbs\"", "document/bad-value"),
            ("[contexts.a]\nurll = \"x\"", "document/unknown-key"),
            ("[contexts.a]\ntoken = \"x\"\ntoken_file = \"y\"", "document/bad-value"),
        ] {
            assert_eq!(Contexts::from_toml(text, "c.toml").unwrap_err().page().code, code, "{text}");
        }
    }

    #[test]
    fn contexts_are_found_added_and_removed() {
        let mut contexts = two();
        assert_eq!(contexts.find("labb").unwrap_err().help().unwrap(), "did you mean `lab`?");
        let pods = Context { kind: ClusterKind::Kubernetes, ..Context::of_state("/x".into()) };
        assert_eq!(contexts.add("k", pods).unwrap_err().page().code, "context/incomplete");
        let slurm = Context { kind: ClusterKind::Slurm, ..Context::of_state("/x".into()) };
        assert_eq!(contexts.add("s", slurm).unwrap_err().page().code, "context/incomplete");
        let bare = Context::at("insecure+http://lab:1".into(), None, None);
        assert_eq!(contexts.add("b", bare).unwrap_err().page().code, "context/incomplete");
        for name in ["", " ", "a b", "-x", "../x", "a\nb", "\x1b[31m", &"x".repeat(65)] {
            let refused = contexts.add(name, Context::of_state("/x".into())).unwrap_err();
            assert_eq!(refused.page().code, "context/name", "{name:?}");
        }
        contexts.remove("lab").unwrap();
        assert_eq!((contexts.current.as_deref(), contexts.all.len()), (None, 3));
    }

    #[test]
    fn a_file_with_a_token_is_for_its_owner_alone() {
        let path = std::env::temp_dir().join(format!("bedplate-contexts-{}.toml", std::process::id()));
        let mut contexts = two();
        let token = Some(Token::Text("secret".into()));
        contexts.add("open", Context::at("http://127.0.0.1:1".into(), None, token)).unwrap();
        contexts.save(&path).unwrap();
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        contexts.save(&link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::remove_file(&link).unwrap();
        assert_eq!(Contexts::load(Path::new("/dev/zero")).unwrap_err().page().code, "context/file");
        assert_eq!(contexts.save(Path::new("/dev/null")).unwrap_err().page().code, "context/file");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Contexts::load(&path).unwrap(), contexts);
        assert!(!format!("{contexts:?}").contains("secret"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Contexts::load(&path).unwrap_err().page().code, "context/readable");
        fs::remove_file(&path).unwrap();
        assert_eq!(Contexts::load(&path).unwrap(), Contexts::default());
    }
}

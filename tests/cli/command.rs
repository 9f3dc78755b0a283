//! The real binary with flags that are right, until a test makes some of them wrong.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use tempfile::TempDir;
use testbed::apiserver::MemApiServer;

/// The name of the Node.
pub const NODE: &str = "n1";

/// Flags by name, and a directory for all that they name.
pub struct Flags {
    flags: BTreeMap<&'static str, String>,
    env: BTreeMap<&'static str, String>,
    dir: TempDir,
}

/// What came of a command.
#[derive(Debug)]
pub struct Told {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs the binary with these arguments and nothing of this process's environment.
pub fn told(arguments: &[&str]) -> Told {
    tell(command().args(arguments))
}

/// The same with something in the agent's place that gives these answers, one for each connection, and then closes it; an
/// empty one is none.
pub fn answered(arguments: &[&str], answers: &[&str]) -> Told {
    let whole = |answer: &&str| match answer.len() {
        0 => String::new(),
        length => format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}"),
    };
    let answers: Vec<String> = answers.iter().map(whole).collect();
    answered_as_is(arguments, &answers.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same with answers that are whole, with their heads.
pub fn answered_as_is(arguments: &[&str], answers: &[&str]) -> Told {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            for answer in answers {
                let (mut caller, _) = listener.accept().unwrap();
                let _ = caller.read(&mut [0; 4096]).unwrap();
                caller.write_all(answer.as_bytes()).unwrap();
            }
        });
        told(&[arguments, &["--socket", socket.to_str().unwrap()]].concat())
    })
}

pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pod-teardown"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// Runs a command, and takes down what it says.
pub fn tell(command: &mut Command) -> Told {
    let output = command.output().unwrap();
    Told {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

// === impl Flags ===

impl Flags {
    /// Nothing that they name is wrong; nobody listens at the API server and the runtime's socket is not there yet.
    pub fn good() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kubelet/pods")).unwrap();
        let flags = Self {
            flags: BTreeMap::new(),
            env: BTreeMap::new(),
            dir,
        };
        let path = |name: &str| flags.path(name).display().to_string();
        let kubeconfig = testbed::api::kubeconfig("http://127.0.0.1:1", None, "node", "token");
        fs::write(flags.path("kubeconfig"), kubeconfig).unwrap();
        let given = [
            ("kubeconfig", path("kubeconfig")),
            ("node-name", NODE.to_owned()),
            ("cri-endpoint", format!("unix://{}", path("cri.sock"))),
            ("kubelet-root", path("kubelet")),
            ("state-dir", path("state")),
            ("socket", path("run/agent.sock")),
        ];
        Self {
            flags: given.into(),
            ..flags
        }
    }

    /// With the credentials of the node at this server.
    pub fn at(api: &MemApiServer) -> Self {
        let flags = Self::good();
        fs::write(flags.path("kubeconfig"), api.node_kubeconfig(NODE)).unwrap();
        flags
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The admin socket.
    pub fn socket(&self) -> &Path {
        Path::new(&self.flags["socket"])
    }

    /// Another value for a flag.
    pub fn with(mut self, flag: &'static str, value: impl Into<String>) -> Self {
        self.flags.insert(flag, value.into());
        self
    }

    /// A path in the directory as the value of a flag.
    pub fn with_path(self, flag: &'static str, name: &str) -> Self {
        let path = self.path(name).display().to_string();
        self.with(flag, path)
    }

    /// A flag not given.
    pub fn without(mut self, flag: &'static str) -> Self {
        self.flags.remove(flag);
        self
    }

    /// A flag given by its environment variable instead.
    pub fn by_environment(mut self, flag: &'static str, variable: &'static str) -> Self {
        let value = self.flags.remove(flag).unwrap();
        self.env.insert(variable, value);
        self
    }

    /// An environment variable.
    pub fn by_variable(mut self, variable: &'static str, value: &str) -> Self {
        self.env.insert(variable, value.to_owned());
        self
    }

    /// The command that these flags make with a verb.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = command();
        command.arg(verb).envs(&self.env);
        for (flag, value) in &self.flags {
            command.arg(format!("--{flag}")).arg(value);
        }
        command
    }

    /// Runs that command to its end.
    pub fn tell(&self, verb: &str) -> Told {
        tell(&mut self.command(verb))
    }
}

// === impl Told ===

impl Told {
    /// Lines of standard error.
    pub fn complaints(&self) -> Vec<&str> {
        self.err.lines().collect()
    }
}

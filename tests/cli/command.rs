//! Runs the real binary with valid flags, which tests can change.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    os::{
        fd::AsFd as _,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tempfile::TempDir;
use testbed::apiserver::MemApiServer;

/// The name of the Node.
pub const NODE: &str = "n1";

/// How long a fake agent waits for a connection and for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Flags by name, and a directory with the files that they name.
pub struct Flags {
    flags: BTreeMap<&'static str, String>,
    env: BTreeMap<&'static str, String>,
    dir: TempDir,
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs the binary with these arguments and an empty environment.
pub fn run_command(arguments: &[&str]) -> CommandOutput {
    output_of(command().args(arguments))
}

/// Runs the binary against a fake agent that gives one answer per connection. An empty answer closes the connection.
pub fn run_with_answers(arguments: &[&str], answers: &[&str]) -> CommandOutput {
    let with_headers = |answer: &&str| match answer.len() {
        0 => String::new(),
        length => format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}"),
    };
    let answers: Vec<String> = answers.iter().map(with_headers).collect();
    run_with_raw_answers(arguments, &answers.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs the binary against a fake agent whose answers include HTTP headers.
pub fn run_with_raw_answers(arguments: &[&str], answers: &[&str]) -> CommandOutput {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            for (number, answer) in answers.iter().enumerate() {
                let mut caller = accept(&listener).unwrap_or_else(|| {
                    panic!("{arguments:?}: {number} connections instead of {}", answers.len());
                });
                caller.set_read_timeout(Some(REQUEST_TIMEOUT)).unwrap();
                let _ = caller.read(&mut [0; 4096]).unwrap();
                caller.write_all(answer.as_bytes()).unwrap();
            }
        });
        run_command(&[arguments, &["--socket", socket.to_str().unwrap()]].concat())
    })
}

/// The next connection; `None` if there is none within [`REQUEST_TIMEOUT`].
fn accept(listener: &UnixListener) -> Option<UnixStream> {
    let timeout = PollTimeout::try_from(REQUEST_TIMEOUT).unwrap();
    let mut descriptors = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut descriptors, timeout) {
            Err(Errno::EINTR) => {}
            ready => return (ready.unwrap() > 0).then(|| listener.accept().unwrap().0),
        }
    }
}

pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pod-teardown"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// Runs a command until it exits.
pub fn output_of(command: &mut Command) -> CommandOutput {
    let output = command.output().unwrap();
    CommandOutput {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

// === impl Flags ===

impl Flags {
    /// Valid flags. No API server listens, and the runtime's socket does not exist.
    pub fn valid() -> Self {
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
        let values = [
            ("kubeconfig", path("kubeconfig")),
            ("node-name", NODE.to_owned()),
            ("mode", "auto".to_owned()),
            ("cri-endpoint", format!("unix://{}", path("cri.sock"))),
            ("kubelet-root", path("kubelet")),
            ("state-dir", path("state")),
            ("socket", path("run/agent.sock")),
        ];
        Self {
            flags: values.into(),
            ..flags
        }
    }

    /// Valid flags with the node's credentials for this server.
    pub fn for_server(api: &MemApiServer) -> Self {
        let flags = Self::valid();
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

    /// Sets a flag.
    pub fn with(mut self, flag: &'static str, value: impl Into<String>) -> Self {
        self.flags.insert(flag, value.into());
        self
    }

    /// Sets a flag to a path in the directory.
    pub fn with_path(self, flag: &'static str, name: &str) -> Self {
        let path = self.path(name).display().to_string();
        self.with(flag, path)
    }

    /// Removes a flag.
    pub fn without(mut self, flag: &'static str) -> Self {
        self.flags.remove(flag);
        self
    }

    /// Passes a flag by its environment variable.
    pub fn by_environment(mut self, flag: &'static str, variable: &'static str) -> Self {
        let value = self.flags.remove(flag).unwrap();
        self.env.insert(variable, value);
        self
    }

    /// Sets an environment variable.
    pub fn by_variable(mut self, variable: &'static str, value: &str) -> Self {
        self.env.insert(variable, value.to_owned());
        self
    }

    /// The command with this verb.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = command();
        command.arg(verb).envs(&self.env);
        for (flag, value) in &self.flags {
            command.arg(format!("--{flag}")).arg(value);
        }
        command
    }

    /// Runs the command until it exits.
    pub fn run(&self, verb: &str) -> CommandOutput {
        output_of(&mut self.command(verb))
    }
}

// === impl CommandOutput ===

impl CommandOutput {
    /// Lines of standard error.
    pub fn error_lines(&self) -> Vec<&str> {
        self.err.lines().collect()
    }
}

//! Fork bombs of a size that the machine can bear.

use std::{
    fs,
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::RwLockWriteGuard,
};

use nix::libc::{PR_SET_CHILD_SUBREAPER, SYS_prctl};
use pod_teardown::node::cgroups::HierarchyKind;

use super::{Pod, pause};
use crate::crowd;

/// Limit of processes in the kernel.
const MAX_PROCESSES: usize = 300;
/// Lifetime in seconds if they are not killed.
pub const LIFETIME: u64 = 60;
/// Number of processes before the test acts, for bombs that fill the cgroup.
const FULL_SIZE: usize = 250;
/// Number of parallel chains.
const CHAINS: usize = 8;
/// Number of additional cgroups. Reading all of them takes longer than a fleeing process exists.
const NESTED: usize = 100;

/// How the processes fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bomb {
    /// All stay, and fork whenever there is room.
    Fills,
    /// Each forks once and exits: a listed process no longer exists when it is opened.
    Flees,
}

/// Kills a bomb when dropped, even if files are hidden from the agent by then.
pub struct Guard {
    kill: fs::File,
    _one: RwLockWriteGuard<'static, ()>,
}

/// The first process stays outside and reaps zombies. All others exit by themselves in the end.
const SCRIPT: &str = r#"
    my ($prctl, $subreaper, $life, $flees, $first, @cgroups) = @ARGV;
    $SIG{CHLD} = "IGNORE";
    syscall($prctl + 0, $subreaper + 0, 1) == 0 or die "prctl: $!";
    unless (fork // die "fork: $!") {
        close STDIN;
        for (@cgroups) { open F, ">", $_ and syswrite F, "0" and close F or die "$_: $!" }
        syswrite STDOUT, "in";
        for (2 .. $first) { fork // die "fork: $!" or last }
        while (time < $^T + $life) { my $child = fork; exit if $child && $flees }
        exit;
    }
    <STDIN>;
"#;

// === impl Bomb ===

impl Bomb {
    /// Arguments of the script: the bomb and the kind of machine.
    fn arguments(self) -> [String; 5] {
        let (flees, first) = match self {
            Self::Fills => (0, 1),
            Self::Flees => (1, CHAINS),
        };
        let (life, first) = (LIFETIME.try_into().unwrap(), i64::try_from(first).unwrap());
        [SYS_prctl, PR_SET_CHILD_SUBREAPER.into(), life, flees, first].map(|number| number.to_string())
    }

    /// Whether it has reached its full size.
    fn is_full(self, processes: usize) -> bool {
        match self {
            Self::Fills => processes >= FULL_SIZE,
            Self::Flees => processes > 0,
        }
    }
}

// === impl Guard ===

impl Guard {
    /// Kills all processes in the cgroup.
    pub fn kill(&mut self) {
        // There may be none left.
        let _ = self.kill.write_all(b"1");
    }
}

// === impl Pod ===

impl Pod {
    /// Starts the bomb in the pod's cgroup `below`, in all hierarchies that accept it. It is killed on drop.
    pub fn bomb(&mut self, below: &str, bomb: Bomb) {
        self.limit();
        let kill = self.of_kind(HierarchyKind::V2, "cgroup.kill");
        self.guard = Some(Guard {
            kill: fs::OpenOptions::new().write(true).open(kill).unwrap(),
            _one: crowd::forks(),
        });
        for path in (0..NESTED).flat_map(|nth| self.paths(&format!("{below}/{nth}"))) {
            fs::create_dir_all(path).unwrap();
        }
        let mut command = Command::new("perl");
        command.args(["-e", SCRIPT]).args(bomb.arguments());
        command.args(self.entrances(below));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut started = child.stdout.take().unwrap();
        self.children.push(child);
        started.read_exact(&mut [0; 2]).expect("it is in all of them");
        for _ in 0..5000 {
            if bomb.is_full(self.processes().len()) {
                return;
            }
            pause();
        }
        panic!("{bomb:?}: there are only {}", self.processes().len());
    }

    /// Limits the number of processes, in any hierarchy that can count them.
    fn limit(&self) {
        let limits = self.cgroups.hierarchies().iter();
        let limits = limits.map(|it| it.path.join(&self.root).join("pids.max"));
        let limits: Vec<_> = limits.filter(|file| file.exists()).collect();
        assert!(!limits.is_empty(), "nothing limits them");
        for file in limits {
            fs::write(file, MAX_PROCESSES.to_string()).unwrap();
        }
    }
}

//! Processes that fork as fast as they can, in numbers that a machine bears.

use std::{
    fs,
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::RwLockWriteGuard,
};

use nix::libc::{PR_SET_CHILD_SUBREAPER, SYS_prctl};
use pod_teardown::node::cgroups::HierarchyKind;

use super::{Pod, nap};
use crate::crowd;

/// So many the kernel allows.
const LIMIT: usize = 300;
/// So long they go on if nobody ends them, in seconds.
pub const LIFE: u64 = 60;
/// So many are there before anything is done to them, where they fill it.
const FULL: usize = 250;
/// So many flee at a time.
const CHAINS: usize = 8;
/// Cgroups beside theirs. To look into all of them takes longer than a process that flees is there.
const NESTED: usize = 100;

/// How they fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bomb {
    /// All stay, and fork whenever there is room.
    Fills,
    /// Each forks once and ends: whoever is listed is gone when he is looked for.
    Flees,
}

/// Ends a bomb, however the test ends, and whatever is hidden from the agent by then.
pub struct Guard {
    kill: fs::File,
    _one: RwLockWriteGuard<'static, ()>,
}

/// The first process stays outside and sees to it that nobody is left as a zombie. All others end by themselves if
/// nobody ends them.
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
    /// What the script is told of it, and of this kind of machine.
    fn arguments(self) -> [String; 5] {
        let (flees, first) = match self {
            Self::Fills => (0, 1),
            Self::Flees => (1, CHAINS),
        };
        let (life, first) = (LIFE.try_into().unwrap(), i64::try_from(first).unwrap());
        [SYS_prctl, PR_SET_CHILD_SUBREAPER.into(), life, flees, first].map(|number| number.to_string())
    }

    /// Whether it is at its worst.
    fn is_full(self, processes: usize) -> bool {
        match self {
            Self::Fills => processes >= FULL,
            Self::Flees => processes > 0,
        }
    }
}

// === impl Guard ===

impl Guard {
    /// Kills all that is in the cgroup.
    pub fn kill(&mut self) {
        // There may be none any more.
        let _ = self.kill.write_all(b"1");
    }
}

// === impl Pod ===

impl Pod {
    /// Lets it go off in the pod's cgroup `below`, in all hierarchies that take it. Its end is sure from here on.
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
        let mut told = child.stdout.take().unwrap();
        self.children.push(child);
        told.read_exact(&mut [0; 2]).expect("it is in all of them");
        for _ in 0..5000 {
            if bomb.is_full(self.processes().len()) {
                return;
            }
            nap();
        }
        panic!("{bomb:?}: there are only {}", self.processes().len());
    }

    /// No more than a machine bears, in whichever hierarchy can count them.
    fn limit(&self) {
        let limits = self.cgroups.hierarchies().iter();
        let limits = limits.map(|it| it.path.join(&self.root).join("pids.max"));
        let limits: Vec<_> = limits.filter(|file| file.exists()).collect();
        assert!(!limits.is_empty(), "nothing limits them");
        for file in limits {
            fs::write(file, LIMIT.to_string()).unwrap();
        }
    }
}

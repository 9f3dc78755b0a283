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
/// Number of processes before the test acts.
const FULL_SIZE: usize = 250;

/// Kills a bomb when dropped, even if files are hidden from the agent by then.
pub struct Guard {
    kill: fs::File,
    _one: RwLockWriteGuard<'static, ()>,
}

/// The first process stays outside and reaps zombies. All others exit by themselves in the end.
const SCRIPT: &str = r#"
    my ($prctl, $subreaper, $life, @cgroups) = @ARGV;
    $SIG{CHLD} = "IGNORE";
    syscall($prctl + 0, $subreaper + 0, 1) == 0 or die "prctl: $!";
    unless (fork // die "fork: $!") {
        close STDIN;
        for (@cgroups) { open F, ">", $_ and syswrite F, "0" and close F or die "$_: $!" }
        syswrite STDOUT, "in";
        while (time < $^T + $life) { fork }
        exit;
    }
    <STDIN>;
"#;

impl Guard {
    /// Kills all processes in the cgroup.
    pub fn kill(&mut self) {
        // There may be none left.
        let _ = self.kill.write_all(b"1");
    }
}

impl Pod {
    /// Starts the bomb in the pod's cgroup `below`, in all hierarchies that accept it. It is killed on drop.
    pub fn bomb(&mut self, below: &str) {
        self.limit();
        let kill = self.of_kind(HierarchyKind::V2, "cgroup.kill");
        self.guard = Some(Guard {
            kill: fs::OpenOptions::new().write(true).open(kill).unwrap(),
            _one: crowd::forks(),
        });
        let mut command = Command::new("perl");
        let arguments = [SYS_prctl, PR_SET_CHILD_SUBREAPER.into(), LIFETIME.try_into().unwrap()];
        command
            .args(["-e", SCRIPT])
            .args(arguments.map(|number| number.to_string()));
        command.args(self.entrances(below));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut started = child.stdout.take().unwrap();
        self.children.push(child);
        started.read_exact(&mut [0; 2]).expect("it is in all of them");
        for _ in 0..5000 {
            if self.processes().len() >= FULL_SIZE {
                return;
            }
            pause();
        }
        panic!("there are only {}", self.processes().len());
    }

    /// Limits the number of processes, in any hierarchy that can count them.
    fn limit(&self) {
        let limits = self.cgroups.hierarchies.iter();
        let limits = limits.map(|it| it.path.join(&self.root).join("pids.max"));
        let limits: Vec<_> = limits.filter(|file| file.exists()).collect();
        assert!(!limits.is_empty(), "nothing limits them");
        for file in limits {
            fs::write(file, MAX_PROCESSES.to_string()).unwrap();
        }
    }
}

use std::os::unix::fs::symlink;

use super::*;

fn ours(root: &KubeletRoot) -> Ours<'_> {
    Ours {
        root,
        runtime: Path::new("/run/ours.sock"),
    }
}

struct Machine {
    temp: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            temp: tempfile::tempdir().unwrap(),
        };
        for dir in ["proc/self", "ours/pods", "rootfs/var/lib"] {
            fs::create_dir_all(machine.path(dir)).unwrap();
        }
        machine
    }

    fn path(&self, below: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(below)
    }

    fn process(&self, pid: i32, comm: &str, arguments: &[&str]) -> PathBuf {
        let dir = self.path(&format!("proc/{pid}"));
        fs::create_dir_all(dir.join("task/1")).unwrap();
        fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
        fs::write(dir.join("cmdline"), arguments.join("\0") + "\0").unwrap();
        fs::write(dir.join("stat"), format!("{pid} ({comm}) S 1")).unwrap();
        symlink(self.path("rootfs"), dir.join("root")).unwrap();
        symlink(self.path(""), dir.join("cwd")).unwrap();
        dir
    }

    /// The same in the machine's own root file system.
    fn process_here(&self, pid: i32, comm: &str, arguments: &[&str]) -> PathBuf {
        let dir = self.process(pid, comm, arguments);
        fs::remove_file(dir.join("root")).unwrap();
        symlink("/", dir.join("root")).unwrap();
        dir
    }

    fn found(&self) -> Vec<(i32, Why)> {
        let root = KubeletRoot::resolve(&self.path("ours")).unwrap();
        find(&self.path("proc"), ours(&root))
            .unwrap()
            .into_iter()
            .map(|it| (it.pid, it.why))
            .collect()
    }
}

#[test]
fn the_root_directory_is_read_from_the_command_line() {
    for (arguments, expected) in [
        (&["kubelet"][..], None),
        (&["kubelet", "--root-dir", "/a"], Some("/a")),
        (&["kubelet", "--root_dir=/a"], Some("/a")),
        (&["kubelet", "--root-dir=/a b", "--v=2"], Some("/a b")),
        (&["kubelet", "--root-dir=/a", "--root-dir", "/b=c"], Some("/b=c")),
        (&["kubelet", "--root-directory=/a"], None),
        (&["k3s", "agent", "--kubelet-arg=root-dir=/a"], Some("/a")),
        (&["k3s", "agent", "--kubelet-arg", "root-dir=/a"], Some("/a")),
    ] {
        let arguments = arguments.join("\0") + "\0";
        assert_eq!(
            path_flag(arguments.as_bytes(), ROOT_FLAG).as_deref(),
            expected.map(Path::new)
        );
    }
}

#[test]
fn a_kubelet_counts_if_its_directory_is_ours_by_whatever_path() {
    let machine = Machine::new();
    // In its own root file system the directory is a bind in real life; a hard fact of dev and inode either way.
    symlink(machine.path("ours"), machine.path("rootfs/direct")).unwrap();
    machine.process(5, "kubelet", &["kubelet", "--root-dir=ours"]);
    machine.process(6, "kubelet", &["kubelet", "--root-dir", "./ours/../ours"]);
    machine.process(7, "kubelet", &["kubelet", "--root-dir=/nowhere"]);
    machine.process(8, "kubelet-amd64", &["kubelet", "--root-dir=ours"]);
    machine.process(9, "kubelet", &["kubelet"]);
    machine.process(10, "kubelet-1.36.3", &["kubelet", "--root_dir=ours"]);
    machine.process(11, ".kubelet-wrappe", &["kubelet", "--root-dir=ours"]);
    machine.process(12, "not-a-kubelet", &["kubelet", "--root-dir=ours"]);
    assert_eq!(machine.found(), [5, 6, 8, 10, 11].map(|pid| (pid, Why::SameDirectory)));
}

#[test]
fn a_kubelet_with_another_directory_on_this_machine_counts_unless_it_names_another_runtime() {
    let machine = Machine::new();
    let here = |pid, arguments: &[&str]| machine.process_here(pid, "kubelet", arguments);
    here(5, &["kubelet", "--root-dir=/data/kubelet"]);
    here(
        6,
        &[
            "kubelet",
            "--root-dir=/x",
            "--container-runtime-endpoint=unix:///run/ours.sock",
        ],
    );
    here(
        7,
        &[
            "kubelet",
            "--root-dir=/x",
            "--container-runtime-endpoint",
            "/run/other.sock",
        ],
    );
    machine.process(8, "kubelet", &["kubelet", "--root-dir=/x"]);
    assert_eq!(machine.found(), [5, 6].map(|pid| (pid, Why::SameMachine)));
}

#[test]
fn what_holds_a_kubelet_counts_unless_it_plainly_does_so_elsewhere_or_does_something_else() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
    machine.process_here(5, "k3s-server", &["/usr/local/bin/k3s server"]);
    machine.process_here(6, "k3s", &["k3s", "--debug", "agent"]);
    machine.process_here(7, "k3s", &["k3s", "kubectl", "logs"]);
    machine.process_here(8, "kubelite", &["kubelite", "--kubelet-args-file=args"]);
    machine.process(
        9,
        "rke2",
        &["/usr/bin/rke2", "server", "--kubelet-arg=root-dir=elsewhere"],
    );
    machine.process(10, "k0s", &["k0s", "worker", "--kubelet-arg=root-dir=ours"]);
    let gone = machine.process_here(11, "kubelite", &[]);
    fs::write(gone.join("stat"), "11 (kubelite) Z 1").unwrap();
    let unsaid = |pid| (pid, Why::Unsaid);
    assert_eq!(
        machine.found(),
        [unsaid(5), unsaid(6), unsaid(8), (10, Why::SameDirectory)]
    );
}

#[test]
fn what_holds_a_kubelet_in_a_container_counts_only_if_our_directory_is_there() {
    let machine = Machine::new();
    // No directory, one of its own, and what is no directory at all.
    machine.process(5, "kubelite", &["kubelite"]);
    assert_eq!(machine.found(), []);
    fs::write(machine.path("rootfs/var/lib/kubelet"), "").unwrap();
    assert_eq!(machine.found(), []);
    fs::remove_file(machine.path("rootfs/var/lib/kubelet")).unwrap();
    fs::create_dir_all(machine.path("rootfs/var/lib/kubelet/pods")).unwrap();
    machine.process(6, "k3s", &["k3s", "server"]);
    machine.process(7, "edgecore", &["edgecore"]);
    assert_eq!(machine.found(), []);
    // The machine's, mounted there.
    let root = KubeletRoot::resolve(&machine.path("rootfs/var/lib/kubelet")).unwrap();
    let found = find(&machine.path("proc"), ours(&root)).unwrap();
    let found: Vec<_> = found.into_iter().map(|it| (it.pid, it.why)).collect();
    assert_eq!(found, [5, 6, 7].map(|pid| (pid, Why::SameDirectory)));
}

#[test]
fn what_holds_a_kubelet_in_a_snap_or_a_container_counts_if_it_has_our_directory_by_our_name_for_it() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("rootfs/var/lib/kubelet/pods")).unwrap();
    let name = machine.path("ours");
    let same = machine.path("rootfs").join(name.strip_prefix("/").unwrap());
    fs::create_dir_all(same.parent().unwrap()).unwrap();
    machine.process(5, "kubelite", &["kubelite"]);
    assert_eq!(machine.found(), []);
    // A bind in real life: seen from there, a directory that is ours.
    fs::create_dir(machine.path("rootfs/bind")).unwrap();
    fs::rename(machine.path("ours"), machine.path("rootfs/bind/ours")).unwrap();
    symlink(machine.path("rootfs/bind/ours"), machine.path("ours")).unwrap();
    symlink("/bind/ours", same).unwrap();
    assert_eq!(machine.found(), [(5, Why::SameDirectory)]);
}

#[test]
fn what_holds_a_kubelet_and_cannot_be_looked_at_counts() {
    let machine = Machine::new();
    let dir = machine.process(5, "k3s-server", &["/usr/local/bin/k3s server"]);
    fs::remove_file(dir.join("root")).unwrap();
    machine.process(6, "kubelite", &["kubelite"]);
    symlink("kubelet", machine.path("rootfs/var/lib/kubelet")).unwrap();
    assert_eq!(
        machine.found(),
        [(5, Why::Unreadable(Errno::NOENT)), (6, Why::Unreadable(Errno::LOOP))]
    );
}

#[test]
fn links_are_resolved_in_the_kubelets_root_and_not_in_ours() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("rootfs/data/pods")).unwrap();
    symlink("/data", machine.path("rootfs/var/lib/kubelet")).unwrap();
    machine.process(5, "kubelet", &["kubelet"]);
    assert_eq!(machine.found(), []);
    let root = KubeletRoot::resolve(&machine.path("rootfs/data")).unwrap();
    assert_eq!(
        find(&machine.path("proc"), ours(&root)).unwrap()[0].why,
        Why::SameDirectory
    );
}

#[test]
fn a_kubelet_that_has_not_made_its_pods_directory_yet_counts_by_its_root() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
    fs::remove_dir(machine.path("ours/pods")).unwrap();
    symlink("../elsewhere/pods", machine.path("ours/pods")).unwrap();
    machine.process(5, "kubelet", &["kubelet", "--root-dir=ours"]);
    assert_eq!(machine.found(), [(5, Why::SameDirectory)], "through the link");
}

#[test]
fn a_kubelet_whose_directory_cannot_be_looked_at_counts() {
    let machine = Machine::new();
    let dir = machine.process(5, "kubelet", &["kubelet"]);
    fs::remove_file(dir.join("root")).unwrap();
    assert_eq!(machine.found(), [(5, Why::Unreadable(Errno::NOENT))]);
    fs::remove_file(dir.join("cmdline")).unwrap();
    assert_eq!(machine.found(), [(5, Why::Unreadable(Errno::NOENT))]);
}

#[test]
fn a_kubelet_that_is_only_a_zombie_does_not_count_unless_threads_are_left() {
    let machine = Machine::new();
    let dir = machine.process(5, "kubelet", &[]);
    fs::remove_file(dir.join("root")).unwrap();
    fs::write(dir.join("stat"), "5 (kubelet) Z 1").unwrap();
    assert_eq!(machine.found(), []);
    fs::create_dir(dir.join("task/2")).unwrap();
    assert_eq!(machine.found(), [(5, Why::Unreadable(Errno::NOENT))]);
}

#[test]
fn a_process_whose_name_cannot_be_read_may_be_a_kubelet_and_one_that_has_ended_is_none() {
    let machine = Machine::new();
    let root = KubeletRoot::resolve(&machine.path("ours")).unwrap();
    let dir = machine.process(5, "sleep", &["sleep"]);
    fs::remove_file(dir.join("comm")).unwrap();
    assert_eq!(machine.found(), [], "it has ended");
    // Whatever else keeps a name from being read, such as too many open files.
    fs::create_dir(dir.join("comm")).unwrap();
    assert!(find(&machine.path("proc"), ours(&root)).is_err());
    assert!(with_pid(&machine.path("proc"), 5, ours(&root)).is_err());
    machine.process(6, "kubelet", &["kubelet", "--root-dir=ours"]);
    assert_eq!(machine.found(), [(6, Why::SameDirectory)], "one that is seen suffices");
}

use std::{net::SocketAddr, os::unix::fs::symlink};

use nix::errno::Errno;

use super::{arguments::Arguments, *};
use crate::node::kubelet_root::KubeletRoot;

fn ours(root: &KubeletRoot) -> LocalKubelet {
    LocalKubelet {
        root: root.clone(),
        runtime: "/run/ours.sock".into(),
        healthz: Some(([127, 0, 0, 1], 10248).into()),
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

    fn found(&self) -> Vec<(i32, MatchReason)> {
        let root = KubeletRoot::resolve(&self.path("ours")).unwrap();
        find(&self.path("proc"), &ours(&root))
            .unwrap()
            .into_iter()
            .map(|it| (it.pid, it.why))
            .collect()
    }
}

#[test]
fn root_directory_is_read_from_the_command_line() {
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
            Arguments(arguments.as_bytes()).path("root-dir").as_deref(),
            expected.map(Path::new)
        );
    }
}

#[test]
fn kubelet_counts_if_its_directory_is_ours_by_any_path() {
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
    assert_eq!(
        machine.found(),
        [5, 6, 8, 10, 11].map(|pid| (pid, MatchReason::SameDirectory))
    );
}

#[test]
fn kubelet_with_another_directory_counts_unless_it_names_another_runtime() {
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
    assert_eq!(machine.found(), [5, 6].map(|pid| (pid, MatchReason::SameNode)));
}

#[test]
fn wrapper_counts_unless_it_provably_runs_elsewhere_or_without_a_kubelet() {
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
    let unsaid = |pid| (pid, MatchReason::UnknownDirectory);
    assert_eq!(
        machine.found(),
        [unsaid(5), unsaid(6), unsaid(8), (10, MatchReason::SameDirectory)]
    );
}

#[test]
fn wrapper_in_a_container_counts_only_with_our_directory() {
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
    let found = find(&machine.path("proc"), &ours(&root)).unwrap();
    let found: Vec<_> = found.into_iter().map(|it| (it.pid, it.why)).collect();
    assert_eq!(found, [5, 6, 7].map(|pid| (pid, MatchReason::SameDirectory)));
}

#[test]
fn wrapper_in_a_snap_or_container_counts_with_our_directory_at_our_path() {
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
    assert_eq!(machine.found(), [(5, MatchReason::SameDirectory)]);
}

#[test]
fn failed_walk_counts_only_in_the_hosts_root() {
    let machine = Machine::new();
    symlink("kubelet", machine.path("rootfs/var/lib/kubelet")).unwrap();
    fs::write(machine.path("rootfs/file"), "").unwrap();
    let long = format!("--root-dir=/{}", "x/".repeat(4096));
    machine.process(5, "kubelet", &["kubelet"]);
    machine.process(6, "kubelite", &["kubelite"]);
    machine.process(7, "kubelet", &["kubelet", &long]);
    assert_eq!(machine.found(), []);
    machine.process_here(8, "kubelet", &["kubelet", &long]);
    assert_eq!(machine.found(), [(8, MatchReason::Unreadable(Errno::ENAMETOOLONG))]);
}

#[test]
fn kubelet_in_an_unreadable_container_counts_by_its_mountinfo() {
    let machine = Machine::new();
    let own = format!("31 1 8:1 / {} rw - ext4 /dev/sda1 rw\n", machine.path("").display());
    fs::write(machine.path("proc/self/mountinfo"), own).unwrap();
    symlink("lib", machine.path("rootfs/var/lib/lib")).unwrap();
    for (pid, source, counts) in [
        (5, "8:1 /ours", true),
        (6, "8:1 /others", false),
        (7, "8:2 /ours", false),
    ] {
        let dir = machine.process(pid, "kubelet", &["kubelet", "--root-dir=/var/lib/lib/kubelet"]);
        let theirs = format!(
            "50 1 0:50 / / rw - overlay overlay rw\n51 50 {source} /var/lib/lib/kubelet rw - ext4 /dev/sda1 rw\n"
        );
        fs::write(dir.join("mountinfo"), theirs).unwrap();
        assert_eq!(
            machine.found().contains(&(pid, MatchReason::SameDirectory)),
            counts,
            "{source}"
        );
    }
}

#[test]
fn process_that_cannot_mount_is_no_kubelet() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("proc/self/ns")).unwrap();
    symlink("user:[1]", machine.path("proc/self/ns/user")).unwrap();
    let process = |pid, rights: Option<&str>, namespace: Option<&str>| {
        let dir = machine.process_here(pid, "kubelet", &["kubelet", "--root-dir=ours"]);
        fs::create_dir_all(dir.join("ns")).unwrap();
        if let Some(rights) = rights {
            let name = "Name:\tkubelet\\nCapEff:\t000001ffffffffff\nState:\tS (sleeping)";
            fs::write(dir.join("status"), format!("{name}\nCapEff:\t{rights}\nSeccomp:\t0\n")).unwrap();
        }
        if let Some(namespace) = namespace {
            symlink(namespace, dir.join("ns/user")).unwrap();
        }
        // An unreadable process is no evidence either.
        if pid % 2 == 0 {
            fs::remove_file(dir.join("cwd")).unwrap();
        }
    };
    // A container's usual rights, and none.
    for (pid, rights) in [
        (5, "00000000a80425fb"),
        (6, "00000000a80425fb"),
        (7, "0000000000000000"),
    ] {
        process(pid, Some(rights), Some("user:[1]"));
    }
    for pid in [8, 9] {
        process(pid, Some("000001ffffffffff"), Some("user:[2]"));
    }
    assert_eq!(machine.found(), []);
    process(15, Some("000001ffffffffff"), Some("user:[1]"));
    process(16, Some("000001ffffffffff"), Some("user:[1]"));
    // Missing values exclude no process.
    process(17, None, None);
    process(18, None, None);
    let unreadable = MatchReason::Unreadable(Errno::ENOENT);
    assert_eq!(
        machine.found(),
        [
            (15, MatchReason::SameDirectory),
            (16, unreadable.clone()),
            (17, MatchReason::SameDirectory),
            (18, unreadable)
        ]
    );
}

/// Drivers, approvers and exporters have such names, and often the kubelet's directory.
#[test]
fn process_named_like_a_kubelet_counts_with_kubelet_evidence() {
    let machine = Machine::new();
    let root = KubeletRoot::resolve(&machine.path("ours")).unwrap();
    let same = machine.path("rootfs/var/lib/kubelet");
    symlink(machine.path("ours"), &same).unwrap();
    // A bind in real life.
    fs::rename(machine.path("ours"), machine.path("rootfs/ours")).unwrap();
    fs::remove_file(&same).unwrap();
    symlink("/ours", &same).unwrap();
    symlink(machine.path("rootfs/ours"), machine.path("ours")).unwrap();
    let name = "kubelet-gpu-plugin";
    let comm = &name[..15];
    let has = |what: &str, prepare: &dyn Fn(&Path), arguments: &[&str], counts: bool| {
        let dir = machine.process(5, comm, &[&[name], arguments].concat());
        prepare(&dir);
        let found = find(&machine.path("proc"), &ours(&root)).unwrap();
        assert_eq!(found.len(), usize::from(counts), "{what}: {found:?}");
        fs::rename(dir, machine.temp.path().join(what)).unwrap();
    };
    let nothing = |_: &Path| {};
    has(
        "nothing",
        &nothing,
        &["--kubeconfig=/x", "--node-name", "n1", "-v=5"],
        false,
    );
    has("a flag", &nothing, &["--hostname_override=n1"], true);
    for flag in [
        "--fail-swap-on=false",
        "--max-pods=110",
        "--eviction-hard=memory.available<1%",
        "--register-node",
        "--register-with-taints=a=b:NoSchedule",
        "--bootstrap-kubeconfig=/x",
        "--manifest-url=http://x",
        "--pod-manifest-path=/x",
        "--node-labels=a=b",
        "--kube-reserved=cpu=1",
        "--system_reserved=cpu=1",
    ] {
        let named = flag[2..].replace('/', "");
        has(&named, &nothing, &[flag], true);
    }
    for other in [
        "--cert-dir=x",
        "--feature-gates=A=true",
        "--v=2",
        "--address=x",
        "--cloud-provider=x",
    ] {
        has(&other[2..], &nothing, &[other], false);
    }
    has(
        "flag of others",
        &nothing,
        &["--kubelet-root-dir=/x", "root-dir"],
        false,
    );
    let kubelets = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    for (file, text) in [
        ("mine", kubelets),
        ("other", "kind: DriverConfiguration\n"),
        ("torn", "{ kind:"),
    ] {
        fs::write(machine.path("rootfs").join(file), text).unwrap();
    }
    has("configuration", &nothing, &["--config=/mine"], true);
    for other in ["--config=/other", "--config=/torn", "--config=/none", "--config=/var"] {
        has(&other[10..], &nothing, &[other], false);
    }
    let unix = |path: &str, flags: &str| {
        format!("0000000000000000: 00000002 00000000 {flags} 0001 01 77 /var/lib/kubelet/{path}\n")
    };
    let tcp = |local: &str, state: &str| {
        format!("  0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 77 1 0\n")
    };
    let (pod_resources, any_address) = ("pod-resources/kubelet.sock", "0".repeat(32));
    for (what, file, line, counts) in [
        ("its socket", "unix", unix(pod_resources, "00010000"), true),
        ("a connection", "unix", unix(pod_resources, "00000000"), false),
        ("a driver's", "unix", unix("plugins/gpu/dra.sock", "00010000"), false),
        ("its port", "tcp6", tcp(&format!("{any_address}:280A"), "0A"), true),
        ("its health", "tcp", tcp("0100007F:2808", "0A"), true),
        ("another port", "tcp", tcp("0100007F:1F90", "0A"), false),
        ("a client", "tcp", tcp("0100007F:2808", "01"), false),
    ] {
        has(what, &|dir| sockets_of(dir, file, &line), &[], counts);
    }
}

/// A kubelet started by a loader, or under another name, is as much a kubelet as any.
#[test]
fn process_of_any_name_counts_if_it_listens_on_a_kubelet_socket() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
    fs::create_dir_all(machine.path("rootfs/bind")).unwrap();
    fs::create_dir_all(machine.path("rootfs/var/lib/elsewhere/pods")).unwrap();
    // A bind in real life: in the container our directory is at the default path.
    fs::rename(machine.path("ours"), machine.path("rootfs/bind/ours")).unwrap();
    symlink(machine.path("rootfs/bind/ours"), machine.path("ours")).unwrap();
    symlink("/bind/ours", machine.path("rootfs/var/lib/kubelet")).unwrap();
    let root = KubeletRoot::resolve(&machine.path("ours")).unwrap();
    let (proc, local) = (machine.path("proc"), ours(&root));
    fs::create_dir_all(proc.join("self/net")).unwrap();
    let listens = |path: &str, flags: &str| {
        let line = format!("0000000000000000: 00000002 00000000 {flags} 0001 01    77 {path}\n");
        fs::write(proc.join("self/net/unix"), format!("Num Path\n{line}")).unwrap();
    };
    let has_socket = |dir: &Path, inode: u64| {
        fs::create_dir(dir.join("fd")).unwrap();
        symlink(format!("socket:[{inode}]"), dir.join("fd/3")).unwrap();
    };
    let found = || {
        find(&proc, &local)
            .unwrap()
            .into_iter()
            .map(|it| it.why)
            .collect::<Vec<_>>()
    };
    let (device_plugins, pod_resources) = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock");
    let in_ours = |below: &str| machine.path("ours").join(below).display().to_string();

    for comm in ["ld-linux-x86-64", "main", "real-kubelet", "Kubelet", "nodeagent"] {
        let dir = machine.process_here(5, comm, &["/opt/node"]);
        has_socket(&dir, 77);
        for socket in [device_plugins, pod_resources] {
            listens(&in_ours(socket), "00010000");
            assert_eq!(found(), [MatchReason::SameDirectory], "{comm} {socket}");
            let known = with_pid(&proc, 5, &local).unwrap().unwrap();
            assert!(
                known.why == MatchReason::SameDirectory && !known.is_wrapper,
                "{known:?}"
            );
            listens(&in_ours(socket), "00000000");
            assert_eq!(found(), [], "it does not listen");
        }
        listens(&in_ours("plugins/gpu/dra.sock"), "00010000");
        assert_eq!(found(), [], "a driver's");
        listens(
            &machine.path("elsewhere").join(device_plugins).display().to_string(),
            "00010000",
        );
        assert_eq!(found(), [], "another directory");
        listens(&in_ours(device_plugins), "00010000");
        fs::write(dir.join("status"), "CapEff:\t00000000a80425fb\n").unwrap();
        assert_eq!(found(), [], "it cannot mount");
        assert_eq!(with_pid(&proc, 5, &local).unwrap(), None, "it cannot mount");
        fs::rename(dir, machine.path(comm)).unwrap();
    }
    let other = machine.process_here(5, "main", &["main"]);
    has_socket(&other, 78);
    assert_eq!(found(), [], "another process has that socket");

    // In a container the path is that container's.
    has_socket(&machine.process(6, "main", &["main"]), 77);
    listens("/var/lib/kubelet/device-plugins/kubelet.sock", "00010000");
    assert_eq!(found(), [MatchReason::SameDirectory]);
    listens("/var/lib/elsewhere/device-plugins/kubelet.sock", "00010000");
    assert_eq!(found(), []);
    fs::rename(proc.join("6"), machine.path("container")).unwrap();

    // A kubelet's device plugin socket does not depend on its --root-dir.
    listens(&in_ours(device_plugins), "00010000");
    let endpoint = "--container-runtime-endpoint=unix:///run/other.sock";
    has_socket(&machine.process_here(7, "main", &["main", "--root-dir=/x"]), 77);
    assert_eq!(found(), [MatchReason::SameNode]);
    fs::write(proc.join("7/cmdline"), format!("main\0--root-dir=/x\0{endpoint}\0")).unwrap();
    assert_eq!(found(), [], "another node's");

    // While such a socket listens, a process whose sockets cannot be seen may be the kubelet.
    fs::write(machine.process_here(8, "main", &["main"]).join("fd"), "").unwrap();
    assert!(find(&proc, &local).is_err());
    listens(&in_ours(device_plugins), "00000000");
    assert_eq!(found(), []);
}

/// The process has socket 77, as this line shows.
fn sockets_of(dir: &Path, file: &str, line: &str) {
    for below in ["fd", "net"] {
        fs::create_dir_all(dir.join(below)).unwrap();
    }
    symlink("socket:[77]", dir.join("fd/3")).unwrap();
    symlink("/dev/null", dir.join("fd/0")).unwrap();
    fs::write(dir.join("net").join(file), format!("a head line\n{line}")).unwrap();
}

#[test]
fn answer_counts_only_from_a_possible_kubelet() {
    let machine = Machine::new();
    let proc = machine.path("proc");
    fs::remove_dir(proc.join("self")).unwrap();
    symlink("/proc/self", proc.join("self")).unwrap();
    let own = |dir: &Path| symlink("/proc/self/fd", dir.join("fd")).unwrap();
    own(&machine.process_here(4, "web", &["web"]));
    let listeners = ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"].map(|at| std::net::TcpListener::bind(at).unwrap());
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let ports = listeners.each_ref().map(|it| it.local_addr().unwrap().port());
    for port in ports {
        assert!(
            !is_kubelets_answer(&proc, at(port), None).unwrap(),
            "no process may be a kubelet"
        );
    }
    let unable = machine.process_here(5, "kubelet", &["kubelet"]);
    own(&unable);
    fs::write(unable.join("status"), "CapEff:\t0000000000000000\n").unwrap();
    assert!(
        !is_kubelets_answer(&proc, at(ports[0]), None).unwrap(),
        "it cannot mount"
    );
    let another = machine.process_here(6, "kubelet", &["kubelet"]);
    fs::create_dir(another.join("fd")).unwrap();
    assert!(
        !is_kubelets_answer(&proc, at(ports[0]), None).unwrap(),
        "another process listens"
    );
    for (pid, comm) in [(7, "kubelet"), (8, "kubelet-1.36.3"), (9, "k3s-server")] {
        let dir = machine.process_here(pid, comm, &[comm]);
        own(&dir);
        for port in ports {
            for known in [None, Some(pid), Some(4), Some(1)] {
                assert!(is_kubelets_answer(&proc, at(port), known).unwrap(), "{comm} {known:?}");
            }
        }
        assert!(!is_kubelets_answer(&proc, at(1), None).unwrap());
        fs::remove_file(dir.join("fd")).unwrap();
    }
    // One of another name that was seen by its sockets.
    let known = machine.process_here(10, "main", &["main"]);
    own(&known);
    assert!(
        !is_kubelets_answer(&proc, at(ports[0]), Some(10)).unwrap(),
        "it has no socket of a kubelet"
    );
    let socket = machine.path("pod-resources/kubelet.sock");
    fs::create_dir(socket.parent().unwrap()).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(is_kubelets_answer(&proc, at(ports[0]), Some(10)).unwrap());
    // Its sockets cannot be read.
    fs::write(machine.path("proc/7/fd"), "").unwrap();
    assert!(is_kubelets_answer(&proc, at(ports[0]), None).is_err());
}

#[test]
fn links_are_resolved_in_the_kubelets_root() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("rootfs/data/pods")).unwrap();
    symlink("/data", machine.path("rootfs/var/lib/kubelet")).unwrap();
    machine.process(5, "kubelet", &["kubelet"]);
    assert_eq!(machine.found(), []);
    let root = KubeletRoot::resolve(&machine.path("rootfs/data")).unwrap();
    assert_eq!(
        find(&machine.path("proc"), &ours(&root)).unwrap()[0].why,
        MatchReason::SameDirectory
    );
}

#[test]
fn kubelet_without_pods_directory_counts_by_its_root() {
    let machine = Machine::new();
    fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
    fs::remove_dir(machine.path("ours/pods")).unwrap();
    symlink("../elsewhere/pods", machine.path("ours/pods")).unwrap();
    machine.process(5, "kubelet", &["kubelet", "--root-dir=ours"]);
    assert_eq!(machine.found(), [(5, MatchReason::SameDirectory)], "through the link");
}

#[test]
fn kubelet_with_unreadable_directory_counts() {
    let machine = Machine::new();
    let dir = machine.process(5, "kubelet", &["kubelet"]);
    fs::remove_file(dir.join("root")).unwrap();
    assert_eq!(machine.found(), [(5, MatchReason::Unreadable(Errno::ENOENT))]);
    fs::remove_file(dir.join("cmdline")).unwrap();
    assert_eq!(machine.found(), [(5, MatchReason::Unreadable(Errno::ENOENT))]);
}

#[test]
fn zombie_kubelet_counts_only_with_other_threads() {
    let machine = Machine::new();
    let dir = machine.process(5, "kubelet", &[]);
    fs::remove_file(dir.join("root")).unwrap();
    fs::write(dir.join("stat"), "5 (kubelet) Z 1").unwrap();
    assert_eq!(machine.found(), []);
    fs::create_dir(dir.join("task/2")).unwrap();
    assert_eq!(machine.found(), [(5, MatchReason::Unreadable(Errno::ENOENT))]);
}

#[test]
fn unreadable_name_may_be_a_kubelet_but_an_exited_process_is_none() {
    let machine = Machine::new();
    let root = KubeletRoot::resolve(&machine.path("ours")).unwrap();
    let dir = machine.process(5, "sleep", &["sleep"]);
    fs::remove_file(dir.join("comm")).unwrap();
    assert_eq!(machine.found(), [], "it has ended");
    // The name cannot be read, as with too many open files.
    fs::create_dir(dir.join("comm")).unwrap();
    assert!(find(&machine.path("proc"), &ours(&root)).is_err());
    assert!(with_pid(&machine.path("proc"), 5, &ours(&root)).is_err());
    machine.process(6, "kubelet", &["kubelet", "--root-dir=ours"]);
    assert_eq!(
        machine.found(),
        [(6, MatchReason::SameDirectory)],
        "one that is seen suffices"
    );
}

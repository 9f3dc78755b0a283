//! Holders of a mount.

use std::{fs, path::Path, process::Command, sync::Arc, thread, time::Duration};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use pod_teardown::node::{
    effects::Effects,
    fault::{Cause, Fault},
    holders::{Holders, MountHolder, holders},
    unmounts::Call,
};
use testbed::command::{Killed, copy_program};

use crate::{
    crowd::{no_forks, search_until},
    fuse::Daemon,
    space::{Space, block_on, in_own_namespace, soon, tmpfs, write},
};

fn started(command: &mut Command, program: &str) -> Killed {
    Killed::start(command).and_then(|it| it.running(program)).unwrap()
}

/// The holders by a search that has read all processes.
fn complete_holders(space: &Space, path: &Path) -> Holders {
    let table = space.mounts.read().unwrap();
    let mount = table.mounts_on(path).remove(0);
    let search = || {
        let proc = Path::new("/proc");
        let busy = std::slice::from_ref(&mount);
        let mut found = holders(proc, &table, busy, &Arc::default(), Call::FindHolders);
        found.remove(&mount.id).unwrap()
    };
    search_until(search, |found| !found.is_incomplete)
}

/// Unmounts until the search for holders has read all processes.
fn still_mounted(space: &Space) -> Vec<Fault> {
    let unmount = || space.mounts.unmount_all_below(space.pod.path(), &Effects::ungated());
    search_until(
        || unmount().unwrap_err(),
        |still| matches!(&still[0].cause, Cause::Busy(it) if !it.is_incomplete),
    )
}

fn found(holders: &Holders) -> Vec<(i32, &'static str, bool)> {
    let mut found: Vec<_> = holders
        .processes
        .iter()
        .map(|it| (it.pid, it.usage, it.is_in_other_namespace))
        .collect();
    found.sort_by_key(|it| it.0);
    found
}

#[test]
fn busy_mount_is_reported_with_its_holders() {
    let _crowd = no_forks();
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        tmpfs(&space.volume("empty-dir", "other"));
        copy_program("/bin/sleep", dir.join("slumber")).unwrap();
        let library = fs::read_to_string("/proc/self/maps").unwrap();
        let library = library
            .lines()
            .find_map(|line| line.split_whitespace().nth(5).filter(|it| it.contains("libgcc_s")));
        fs::copy(library.unwrap(), dir.join("library.so")).unwrap();
        let processes = [
            (Command::new("sleep").current_dir(&dir), "sleep"),
            (&mut Command::new(dir.join("slumber")), "slumber"),
            (Command::new("sleep").env("LD_PRELOAD", dir.join("library.so")), "sleep"),
        ]
        .map(|(command, name)| started(command.arg("1000"), name));
        let open = fs::File::create(dir.join("file")).unwrap();
        let maps = format!("/proc/{}/maps", processes[2].pid());
        while !fs::read_to_string(&maps).unwrap().contains("library.so") {
            thread::sleep(Duration::from_millis(5));
        }
        let own = i32::try_from(std::process::id()).unwrap();
        let mut expected = vec![
            // Only this thread of it is in the test's namespace.
            (own, "open file", true),
            (processes[0].pid(), "working directory", false),
            (processes[1].pid(), "mapped file", false),
            (processes[2].pid(), "mapped file", false),
        ];
        expected.sort_by_key(|it| it.0);
        // A process that another test starts has our open file for a moment.
        let still = block_on(soon(async || {
            let still = still_mounted(space);
            let is_expected = |cause: &Cause| matches!(cause, Cause::Busy(holders) if found(holders) == expected);
            if still.len() == 1 && is_expected(&still[0].cause) {
                Ok(still)
            } else {
                Err(format!("{still:?} instead of {expected:?}"))
            }
        }));
        let line = still[0].to_string();
        let named = format!("process {} \"slumber\" (mapped file)", processes[1].pid());
        assert!(line.contains(&named) && !line.contains('\n'), "{line}");
        drop((processes, open));
        space.unmount_all();
    });
}

#[test]
fn holders_in_other_namespaces_are_named() {
    let _crowd = no_forks();
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        let unshared = |propagation: &str, inside: &str| {
            let script = format!("{inside} exec sleep 1000");
            let mut command = Command::new("unshare");
            let command = command.args(["--mount", "--propagation", propagation, "sh", "-c", &script]);
            started(command.env("DIR", &dir), "sleep")
        };
        let _idle = unshared("private", "");
        assert_eq!(
            found(&complete_holders(space, &dir)),
            [],
            "an unused copy keeps nothing busy"
        );
        // Slaves keep the master's mount, private copies do not.
        let user = unshared("slave", "cd \"$DIR\";");
        let still = still_mounted(space);
        let Cause::Busy(holders) = &still[0].cause else {
            panic!("{still:?}")
        };
        assert_eq!(found(holders), [(user.pid(), "working directory", true)]);
        drop(user);
        space.unmount_all();
    });
}

#[test]
fn first_holders_are_named_and_others_counted() {
    let _crowd = no_forks();
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        let processes: Vec<_> = (0..11)
            .map(|_| Killed::sleep_in(&dir).and_then(|it| it.running("sleep")).unwrap())
            .collect();
        let found = complete_holders(space, &dir);
        assert_eq!((found.processes.len(), found.more), (8, 3));
        drop(processes);
        assert_eq!(complete_holders(space, &dir), Holders::default());
    });
}

#[test]
fn unresponsive_server_does_not_block_the_search() {
    let _crowd = no_forks();
    in_own_namespace(|space| {
        let dir = space.volume("nfs", "silent");
        let daemon = Daemon::mounted_on(&dir);
        let open = open(&dir, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        daemon.stop_answering();
        // If the server blocked the search, it would be incomplete. A process that another test starts has our open
        // directory for a moment.
        block_on(soon(async || {
            let found = complete_holders(space, &dir).processes;
            match &found[..] {
                [holder] if holder.usage == "open file" => Ok(()),
                _ => Err(found),
            }
        }));
        drop(open);
    });
}

#[test]
fn holder_in_a_container_is_reported_with_the_container() {
    let id = "0123456789abcdef".repeat(4);
    in_own_namespace(move |space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        let table = space.mounts.read().unwrap();
        let mount = table.mounts_on(&dir).remove(0);
        // A list of processes as the kernel would write it.
        let proc = space.outside.join("proc");
        let of_process = |name: &str| proc.join("77").join(name);
        write(&of_process("comm"), "evil\\x\n");
        write(&of_process("cgroup"), &format!("0::/kubepods/pod1/{id}\n"));
        write(&of_process("fdinfo/3"), &format!("pos:\t0\nmnt_id:\t{}\n", mount.id));
        for process in ["77", "self"] {
            fs::create_dir_all(proc.join(process).join("ns")).unwrap();
            std::os::unix::fs::symlink("mnt:[1]", proc.join(process).join("ns/mnt")).unwrap();
        }
        let found = holders(
            &proc,
            &table,
            std::slice::from_ref(&mount),
            &Arc::default(),
            Call::FindHolders,
        );
        let expected = MountHolder {
            pid: 77,
            command: "evil\\x".to_owned(),
            container: Some(id),
            usage: "open file",
            is_in_other_namespace: false,
        };
        assert_eq!(found[&mount.id].processes, [expected]);
    });
}

//! Volumes of many pods, taken away by the agent's own functions and by plain system calls, in turns: on a node with few
//! mounts, on one with thousands, one volume with very many files, and others beside that one.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the results are printed, and the mounts are those of the bench's own namespace"
)]

#[path = "../tests/node_fs/space.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod space;

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use futures::{future::join_all, join};
use nix::mount::{MntFlags, umount2};
use pod_teardown::{
    node::{dirs::Dir, effects::Effects, kubelet_root::KubeletRoot, pod_dir::PodDir},
    teardown::volumes::storage::Storage,
};
use space::{Space, block_on, in_own_namespace, tear_down_volumes, tmpfs, write};
use testbed::bench::Table;
use tokio::time::{Instant, sleep};

const PODS: usize = 110;
const ROUNDS: usize = 7;
/// Mounts of others on a node that is full of them.
const OTHERS: usize = 4_450;
const FILES: usize = 200_000;
const FILE_ROUNDS: usize = 3;
/// Pods that end beside a removal of very many files, and how long after it has begun.
const BESIDE: usize = 20;
const LATER: Duration = Duration::from_millis(20);
/// As many as the agent lets work at a time.
const THREADS: usize = 8;
/// Of each pod's five volumes, those in memory.
const IN_MEMORY: [&str; 3] = [
    "kubernetes.io~empty-dir/memory",
    "kubernetes.io~secret/s",
    "kubernetes.io~projected/p",
];
const ON_DISK: [&str; 2] = ["kubernetes.io~empty-dir/disk", "kubernetes.io~configmap/c"];

/// What some rounds came to, as multiples of the plain system calls.
#[derive(Default)]
struct Rounds {
    plain: Vec<f64>,
    agent: Vec<f64>,
}

fn main() {
    // `cargo test` runs benches, too; there is nothing to measure without optimization.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let few = volumes(PODS, 0);
    let half = volumes(PODS / 2, OTHERS);
    let full = volumes(PODS, OTHERS);
    let memory = files(None);
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let disk = files(Some(image.path().to_owned()));
    let beside = beside();
    let ratio = |some: &[f64], others: &[f64]| -> Vec<f64> {
        // Round by round: what disturbs one side disturbs the other.
        some.iter().zip(others).map(|(one, other)| one / other).collect()
    };
    let growth = ratio(&full.agent, &half.agent).into_iter().map(|it| it / 2.0);
    let mut table = Table::default();
    for (what, rounds) in [("", &few), (" among 5,000 mounts", &full)] {
        table.add(
            format!("110 pods, 5 volumes{what}: plain calls"),
            "s",
            rounds.plain.clone(),
        );
        table.add(format!("110 pods, 5 volumes{what}: agent"), "s", rounds.agent.clone());
    }
    table.add("agent / plain, 5,000 mounts", "", ratio(&full.agent, &full.plain));
    let per_pod = "per pod, 110 pods / 55, 5,000 mounts";
    table.add_with_goal(per_pod, "", Some(1.1), growth);
    let others = ratio(&full.agent, &few.agent);
    table.add_with_goal("agent, 5,000 mounts / none", "", Some(1.3), others);
    for (what, rounds) in [
        ("agent / plain calls", &few),
        ("200,000 files in memory: agent / rm", &memory),
        ("200,000 files on disk: agent / rm", &disk),
        ("20 pods beside that: agent's / rm", &beside),
    ] {
        table.add_with_goal(what, "", Some(1.2), ratio(&rounds.agent, &rounds.plain));
    }
    println!("{}", table.text("Volumes: unmounted and removed"));
}

fn uid(pod: usize) -> String {
    format!("5f0d7f0e-1b1c-4f7e-8d2b-{pod:012}")
}

fn make(space: &Space, pods: usize) -> Vec<PodDir> {
    let root = KubeletRoot::resolve(&space.root).unwrap();
    let pod = |number| {
        let dir = space.root.join("pods").join(uid(number));
        fs::create_dir_all(&dir).unwrap();
        let pod = PodDir::new(&root, &uid(number)).unwrap();
        for volume in IN_MEMORY {
            tmpfs(&pod.path().join("volumes").join(volume));
        }
        for volume in IN_MEMORY.iter().chain(&ON_DISK) {
            for file in 0..4 {
                write(
                    &pod.path().join("volumes").join(volume).join(format!("d/{file}")),
                    "some content",
                );
            }
        }
        pod
    };
    (0..pods).map(pod).collect()
}

/// Takes the volumes of so many pods away, beside so many mounts of others.
fn volumes(pods: usize, others: usize) -> Rounds {
    measured(move |space| {
        for other in 0..others {
            tmpfs(&space.root.join(format!("pods/other-{}/volumes/{other}", other / 5)));
        }
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            let made = make(space, pods);
            rounds.plain.push(seconds(|| plain(&made)));
            assert_clean(&made);
            let made = make(space, pods);
            let storage = space.storage(&Effects::ungated());
            rounds.agent.push(seconds(|| block_on(take_away(&made, &storage))));
            assert_clean(&made);
        }
        rounds
    })
}

async fn take_away(pods: &[PodDir], storage: &Arc<Storage>) {
    let done = join_all(pods.iter().map(|pod| tear_down_volumes(pod, storage))).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// How long pods take beside the removal of very many files, by another process and by the agent.
fn beside() -> Rounds {
    measured(|space| {
        let storage = space.storage(&Effects::ungated());
        let later = async |pods: &[PodDir]| {
            sleep(LATER).await;
            let began = Instant::now();
            take_away(pods, &storage).await;
            (began.elapsed().as_secs_f64(), Instant::now())
        };
        let mut rounds = Rounds::default();
        for _ in 0..FILE_ROUNDS {
            let made = make(space, BESIDE);
            fill(&space.outside);
            let mut rm = Command::new("rm")
                .arg("-rf")
                .arg(space.outside.join("v"))
                .spawn()
                .unwrap();
            let (took, _) = block_on(later(&made));
            assert!(rm.try_wait().unwrap().is_none(), "they were not beside each other");
            assert!(rm.wait().unwrap().success());
            rounds.plain.push(took);

            let made = make(space, BESIDE);
            fill(&space.volume("empty-dir", "full"));
            let full = async {
                take_away(std::slice::from_ref(&space.pod), &storage).await;
                Instant::now()
            };
            let (end, (took, before)) = block_on(async { join!(full, later(&made)) });
            assert!(end > before, "they were not beside each other");
            rounds.agent.push(took);
        }
        rounds
    })
}

fn assert_clean(pods: &[PodDir]) {
    assert!(pods.iter().all(|pod| pod.leftovers_on_disk().unwrap().is_empty()));
}

/// What anybody would write who knows what is where, without any care.
fn plain(pods: &[PodDir]) {
    let left = Mutex::new(pods.iter());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().next();
                    let Some(pod) = next else { break };
                    let volumes = pod.path().join("volumes");
                    for volume in IN_MEMORY {
                        umount2(&volumes.join(volume), MntFlags::UMOUNT_NOFOLLOW).unwrap();
                    }
                    for volume in IN_MEMORY.iter().chain(&ON_DISK) {
                        fs::remove_dir_all(volumes.join(volume)).unwrap();
                    }
                }
            });
        }
    });
}

/// Removes a volume with very many files, in memory or on the disk of this image.
fn files(image: Option<PathBuf>) -> Rounds {
    measured(move |space| {
        let mut rounds = Rounds::default();
        for _ in 0..FILE_ROUNDS {
            rounds.plain.push(removal(space, image.as_deref(), |base| {
                run("rm", &["-rf".as_ref(), base.join("v").as_os_str()]);
            }));
            rounds.agent.push(removal(space, image.as_deref(), |base| {
                let dir = Dir::open(base).unwrap().unwrap();
                dir.remove_tree(OsStr::new("v"), &Effects::ungated()).map(drop).unwrap();
            }));
        }
        rounds
    })
}

fn removal(space: &Space, image: Option<&Path>, remove: impl FnOnce(&Path)) -> f64 {
    let base = space.outside.join("full");
    fs::create_dir_all(&base).unwrap();
    if let Some(image) = image {
        mount_new_disk(image, &base);
    }
    fill(&base);
    let took = seconds(|| remove(&base));
    if image.is_some() {
        umount2(&base, MntFlags::empty()).unwrap();
    }
    took
}

/// Each removal has a new file system: ext4 is slow to make files where as many were removed within the last half minute.
fn mount_new_disk(image: &Path, target: &Path) {
    fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
    let inodes = (FILES + 1000).to_string();
    let options = ["-q", "-F", "-N", &inodes].map(OsStr::new);
    run("mkfs.ext4", &[&options[..], &[image.as_os_str()]].concat());
    run(
        "mount",
        &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), target.as_os_str()],
    );
}

fn run(program: &str, arguments: &[&OsStr]) {
    assert!(
        Command::new(program).args(arguments).status().unwrap().success(),
        "{program}"
    );
}

fn fill(base: &Path) {
    for dir in 0..20 {
        let dir = base.join("v").join(dir.to_string());
        fs::create_dir_all(&dir).unwrap();
        (0..FILES / 20).for_each(|file| drop(fs::File::create(dir.join(file.to_string())).unwrap()));
    }
    nix::unistd::sync();
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    let took: Duration = began.elapsed();
    took.as_secs_f64()
}

/// In a mount namespace of its own, on a thread that ends with it.
fn measured(measure: impl FnOnce(&Space) -> Rounds + Send + 'static) -> Rounds {
    let (sender, result) = std::sync::mpsc::channel();
    in_own_namespace(move |space| sender.send(measure(space)).unwrap());
    result.recv().unwrap()
}

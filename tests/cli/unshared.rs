//! What starts in a mount namespace of its own refuses to work: nothing that it unmounts would be unmounted on the node.

use std::process::Command;

use testbed::scripted_cri::{ScriptedCri, World};
use tokio::task::spawn_blocking;

use crate::{
    command::{Flags, Told, tell},
    run::api,
};

/// The command as a unit with PrivateMounts= would start it.
fn unshared(flags: &Flags, verb: &str) -> Told {
    let command = flags.command(verb);
    let mut inside = Command::new("unshare");
    inside
        .arg("--mount")
        .arg(command.get_program())
        .args(command.get_args());
    inside.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    tell(&mut inside)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_and_check_refuse_to_work_in_a_mount_namespace_of_their_own() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::at(&api).with("cri-endpoint", cri.endpoint());
    let (run, check) = spawn_blocking(move || (unshared(&flags, "run"), unshared(&flags, "check")))
        .await
        .unwrap();
    for (told, said) in [(&run, &run.err), (&check, &check.out)] {
        assert_eq!(told.code, Some(78), "{told:?}");
        for word in ["not in the mount namespace of the container runtime", "PrivateMounts="] {
            assert!(said.contains(word), "{word} is not in {told:?}");
        }
    }
}

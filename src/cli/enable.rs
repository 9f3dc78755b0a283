//! `enable` and `disable`: whether the installed service acts.

use clap::Args;

/// Let the service of this node act: it tears down deleted pods while the kubelet is down.
///
/// A first installation only observes. This command sets POD_TEARDOWN_PODS=auto in /etc/default/pod-teardown, and changes nothing
/// else in that file. The service reads it when it starts.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # See what the agent would have done until now, and then let it act
  pod-teardown report --since 7d
  pod-teardown enable --now
  # Also have a starting kubelet request a handover
  pod-teardown enable --now --kubelet-dropin

Exit code: 0 it is set; 64 the command line is wrong; 78 the unit of the service has another setting that takes precedence; 1 any \
other error.")]
pub struct EnableArgs {
    /// Restart the service, so that the setting applies. It starts if it does not run.
    #[arg(long)]
    pub now: bool,
    /// Also add a drop-in to kubelet.service: before it starts, it requests a handover, which brings pods in progress to a safe
    /// point. The kubelet is not restarted. Without an agent the kubelet starts as before.
    #[arg(long)]
    pub kubelet_dropin: bool,
}

/// Let the service of this node only observe: it touches nothing, and compares its plans with what the kubelet does.
///
/// The reverse of enable: it sets POD_TEARDOWN_PODS=observe in /etc/default/pod-teardown, and removes the drop-in of
/// kubelet.service that enable has added. To stop the service instead, use systemctl.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Let the agent observe from now on
  pod-teardown disable --now

Exit code: 0 it is set; 64 the command line is wrong; 78 the unit of the service has another setting that takes precedence; 1 any \
other error.")]
pub struct DisableArgs {
    /// Restart the service, so that the setting applies. It starts if it does not run.
    #[arg(long)]
    pub now: bool,
}

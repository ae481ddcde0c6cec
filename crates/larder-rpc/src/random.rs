//! Random numbers that are not secret.

/// For xids, ports and verifiers: different from those of an earlier process of this program, and
/// not secret.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    // For so few bytes this fails only on kernels without the system call; then the number is 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

//! Random numbers that are not secret.

/// For xids, ports and verifiers: unlike those of this program's previous life, and not secret.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    // Cannot fail for so few bytes except on kernels without the call; then they start at 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

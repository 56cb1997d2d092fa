//! The binary: sets the allocator and how memory is copied, and calls the library.
//!
//! All features are in the library, where tests can use them. Read `cli` next.

/// Links mimalloc, whose `malloc` takes the place of that of the C library. As a global allocator
/// it would be asked for aligned blocks only, and takes larger ones for those; and libraries in C
/// would use another allocator.
#[used]
static ALLOCATOR: unsafe extern "C" fn(usize) -> *mut std::ffi::c_void = libmimalloc_sys::mi_malloc;

/// Links a `memcpy` and a `memmove` that take the place of those of musl.
#[cfg(all(target_arch = "x86_64", target_env = "musl"))]
#[used]
static COPY: [unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8; 2] =
    [evenkeel_memcpy::memcpy, evenkeel_memcpy::memmove];

fn main() -> std::process::ExitCode {
    evenkeel::cli::main()
}

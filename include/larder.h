/* Hints for programs on larder mounts: how durable what is written to an open file is to be.
 *
 * A class is a name: scratch, volatile, generated, edited, critical, or one of the mount's rules
 * (larder class list MNT). It holds for what is written by this open file from now on, whoever opens
 * the file besides, and until it is closed. What is to be more durable than before is sent before
 * the call returns. A class that was set for the file itself (larder class set) is nearer: then the
 * hint changes nothing.
 *
 * Any other file system answers ENOTTY or EINVAL, and so may a kernel in between: a hint that is not
 * taken is no failure of the program.
 *
 *   EINVAL      the mount has no such class
 *   EPERM       it is weaker than the file's, and the caller does not own the file
 *   EBUSY       each write is to be at the server, and the kernel writes the file by itself: open it
 *               with O_SYNC
 *   else        what the server says of what was written before
 *
 * Licence: MIT OR Apache-2.0.
 */
#ifndef LARDER_H
#define LARDER_H

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

/* The name of a class, ended by a NUL. */
struct larder_class {
	char name[32];
};

#define LARDER_IOC_CLASS _IOW('L', 0x61, struct larder_class)

/* 0, or -1 with errno. */
static inline int larder_hint(int fd, const char *name)
{
	struct larder_class class = { { 0 } };

	if (strlen(name) >= sizeof(class.name)) {
		errno = EINVAL;
		return -1;
	}
	strcpy(class.name, name);
	return ioctl(fd, LARDER_IOC_CLASS, &class);
}

#endif

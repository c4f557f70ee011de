// SPDX-License-Identifier: Apache-2.0
// impostor mysql|postgres SOCKET|- PORT|0: a program that is taken for a server. It wants the
// password of each who connects, as it is, and prints what it is sent: `got HEX`.
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 16
#define FIRST 3 // after stdin and both that listen

// A greeting of the protocol of version 10, without TLS, for caching_sha2_password.
static const char greeting[] = "\x4a\0\0\0\x0a"
			       "8.0.40\0\1\0\0\0"
			       "12345678\0\x09\x82\x2d\2\0\x28\0\x15\0\0\0\0\0\0\0\0\0\0"
			       "123456789012\0caching_sha2_password";
static const char whole_password[] = "\2\0\0\2\1\4";
static const char clear_password[] = "R\0\0\0\x8\0\0\0\3";

static int listening(int family, const void *address, socklen_t size)
{
	int end = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	if (end < 0 || setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
	    bind(end, address, size) != 0 || listen(end, CLIENTS) != 0)
		err(1, "cannot listen");
	return end;
}

static int at_path(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strcmp(path, "-") == 0)
		return -1;
	(void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	return listening(AF_UNIX, &address, sizeof address);
}

static int at_port(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	if (port == 0)
		return -1;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return listening(AF_INET, &address, sizeof address);
}

static void say(int client, const void *data, size_t size)
{
	(void)send(client, data, size, MSG_NOSIGNAL);
}

static void answer(bool mysql, int client, const unsigned char *data, ssize_t size)
{
	// SSLRequest and GSSENCRequest of PostgreSQL.
	bool asks = size == 8 && data[4] == 0x04 && data[5] == 0xd2;

	if (mysql)
		say(client, whole_password, sizeof whole_password - 1);
	else if (asks)
		say(client, "N", 1);
	else
		say(client, clear_password, sizeof clear_password - 1);
}

static bool hear(bool mysql, int client)
{
	unsigned char data[4096];
	ssize_t size = read(client, data, sizeof data);

	if (size <= 0)
		return false;
	printf("got ");
	for (ssize_t i = 0; i < size; i++)
		printf("%02x", data[i]);
	printf("\n");
	(void)fflush(stdout);
	answer(mysql, client, data, size);
	return true;
}

static void welcome(bool mysql, int end, struct pollfd *ends)
{
	int client = accept(end, NULL, NULL);

	for (int i = FIRST; i < FIRST + CLIENTS; i++)
		if (ends[i].fd < 0) {
			ends[i].fd = client;
			if (mysql)
				say(client, greeting, sizeof greeting);
			return;
		}
	(void)close(client);
}

int main(int argc, char **argv)
{
	struct pollfd ends[FIRST + CLIENTS];

	if (argc < 4)
		errx(1, "usage: impostor mysql|postgres SOCKET|- PORT|0");
	bool mysql = strcmp(argv[1], "mysql") == 0;
	for (int i = 0; i < FIRST + CLIENTS; i++)
		ends[i] = (struct pollfd){.fd = -1, .events = POLLIN};
	ends[0].fd = STDIN_FILENO;
	ends[1].fd = at_path(argv[2]);
	ends[2].fd = at_port(atoi(argv[3]));
	printf("ready\n");
	(void)fflush(stdout);
	while (poll(ends, FIRST + CLIENTS, -1) > 0 && !ends[0].revents) {
		for (int i = 1; i < FIRST; i++)
			if (ends[i].revents)
				welcome(mysql, ends[i].fd, ends);
		for (int i = FIRST; i < FIRST + CLIENTS; i++)
			if (ends[i].revents && !hear(mysql, ends[i].fd)) {
				(void)close(ends[i].fd);
				ends[i].fd = -1;
			}
	}
	return 0;
}

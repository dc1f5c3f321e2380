"""FROM ELSEWHERE: what other schedulers keep in their files, read as jobs. Nothing here touches a database."""
